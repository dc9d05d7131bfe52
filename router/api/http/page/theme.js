// The colour theme: light, dark or the system's; remembered in local storage.

const KEY = "octet-theme";
const CHOICES = ["auto", "light", "dark"];

function remembered() {
  try {
    const found = localStorage.getItem(KEY);
    return CHOICES.includes(found) ? found : "auto";
  } catch {
    return "auto"; // local storage is unavailable
  }
}

function apply(choice) {
  if (choice === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = choice;
}

export function startTheme(select) {
  select.value = remembered();
  select.addEventListener("change", () => {
    apply(select.value);
    try {
      localStorage.setItem(KEY, select.value);
    } catch {
      // keep it for this page only
    }
  });
}

apply(remembered());

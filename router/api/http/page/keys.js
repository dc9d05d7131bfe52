// The dialog for the operator's key, which is kept in this tab until it is closed or the key is forgotten.

import { key, setKey } from "./api.js";
import { byId, setText, show } from "./dom.js";

const dialog = byId("key");
const field = byId("key-value");
const problem = byId("key-error");
const SHAPE = /^[\x21-\x7e]+$/;
let changed = () => undefined;

/** Calls `restart` whenever the key changes. */
export function startKeys(restart) {
  changed = restart;
  byId("key-open").addEventListener("click", () => ask("Enter a key with the role operate to see and change everything here."));
  byId("key-forget").addEventListener("click", () => use(""));
  byId("key-cancel").addEventListener("click", () => dialog.close());
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const given = field.value.trim();
    if (SHAPE.test(given)) use(given);
    else setText(problem, given ? "A key contains only printable ASCII characters without spaces." : "Enter a key.");
  });
  dialog.addEventListener("close", () => (field.value = ""));
  showButtons();
}

export function askForKey(error) {
  if (error.status === 403) {
    ask("This key lacks the role operate. Use a key with that role.", error.message);
  } else if (key()) {
    ask("The router does not know this key. It may have been revoked.", error.message);
  } else {
    ask("This router requires a key. Enter a key with the role operate.");
  }
}

function ask(about, message = "") {
  setText(byId("key-about"), about);
  setText(problem, message);
  if (!dialog.open) dialog.showModal();
  field.focus();
}

function use(given) {
  setKey(given);
  dialog.close();
  showButtons();
  changed();
}

function showButtons() {
  show(byId("key-forget"), key() !== "");
  setText(byId("key-open"), key() === "" ? "Key…" : "Change key…");
}

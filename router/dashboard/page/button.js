// A button that asks before it does anything.

import { make } from "./dom.js";

export function action(text, act) {
  const button = make("button", { type: "button", class: "small" }, text);
  button.addEventListener("click", act);
  return button;
}

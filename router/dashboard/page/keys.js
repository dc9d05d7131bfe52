// The operator's key: asked for when the router asks, kept in this tab, forgotten on demand.

import { byId, setText, show } from "./dom.js";
import { key, setKey } from "./session.js";

const dialog = byId("key");
const field = byId("key-value");
const error = byId("key-error");
const SHAPE = /^[\x21-\x7e]+$/;
let changed = () => undefined;

/** `restart` is called with every other key. */
export function startKeys(restart) {
  changed = restart;
  byId("key-open").addEventListener("click", () => ask("A key with the role operate shows and changes everything here."));
  byId("key-forget").addEventListener("click", () => use(""));
  byId("key-cancel").addEventListener("click", () => dialog.close());
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const given = field.value.trim();
    if (SHAPE.test(given)) use(given);
    else setText(error, given ? "A key has no spaces and no letters beyond ASCII." : "Type or paste a key.");
  });
  dialog.addEventListener("close", () => (field.value = ""));
  showButtons();
}

/** What the router said when it refused. */
export function askForKey(refused) {
  if (refused.status === 403) {
    ask("This key may call, not operate. Ask whoever gave it to you for one with the role operate.", refused.message);
  } else if (key()) {
    ask("The router does not know this key, or no longer.", refused.message);
  } else {
    ask("This router asks for a key. One with the role operate shows and changes everything here.");
  }
}

function ask(about, wrong = "") {
  setText(byId("key-about"), about);
  setText(error, wrong);
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
  setText(byId("key-open"), key() === "" ? "Key…" : "Other key…");
}

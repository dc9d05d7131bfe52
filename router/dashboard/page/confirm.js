// Before anything is changed: what will happen, why, and who says so.

import { post } from "./api.js";
import { fresh } from "./context.js";
import { byId, setText, show } from "./dom.js";
import { askForKey } from "./keys.js";
import { key, operatorName, setOperatorName } from "./session.js";
import { toast } from "./toast.js";

const dialog = byId("act");
const go = byId("act-go");
const cancel = byId("act-cancel");
const why = byId("act-why");
const who = byId("act-who");
const value = byId("act-value");
const error = byId("act-error");
let asked = null;

/** `change`: {title, effect, verb, path, body(value), done, danger, field: {name, value, read}}. */
export function confirm(change) {
  asked = change;
  setText(byId("act-title"), change.title);
  setText(byId("act-effect"), change.effect);
  setText(go, change.verb);
  go.className = change.danger ? "danger" : "main";
  setText(error, "");
  why.value = "";
  who.value = operatorName();
  show(byId("act-who-field"), key() === "");
  show(byId("act-value-field"), change.field !== undefined);
  if (change.field) {
    setText(byId("act-value-name"), change.field.name);
    value.value = change.field.value;
  }
  show(byId("act-stale"), !fresh.isLive);
  setText(byId("act-stale"), `What you see may no longer be so. ${fresh.words}`);
  busy(false);
  dialog.showModal();
  (change.field ? value : why).focus();
}

export function startConfirm() {
  byId("act-form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (asked !== null && !go.disabled) send(asked);
  });
  cancel.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => (asked = null));
}

async function send(change) {
  const wrong = mistake(change);
  if (wrong) {
    setText(error, wrong.words);
    wrong.at.focus();
    return;
  }
  const name = who.value.trim();
  const said = { why: why.value.trim(), ...(key() === "" ? { who: name } : {}) };
  if (key() === "") setOperatorName(name);
  busy(true);
  setText(error, "");
  try {
    await post(change.path, { ...change.body(value.value.trim()), ...said });
    if (asked === change) dialog.close();
    toast(change.done);
  } catch (refused) {
    if (asked === change) setText(error, refused.message);
    else toast(`${change.title}: ${refused.message}`);
    if (refused.status === 401) askForKey(refused);
  } finally {
    if (asked === change) busy(false);
  }
}

/** What is missing or wrong: {at, words}; null: nothing. */
function mistake(change) {
  const wrong = change.field?.mistake(value.value.trim());
  if (wrong) return { at: value, words: wrong };
  if (!why.value.trim()) return { at: why, words: "A reason must be given: the audit keeps it." };
  if (key() === "" && !who.value.trim()) return { at: who, words: "Your name must be given: the audit keeps it." };
  return null;
}

function busy(is) {
  go.disabled = is;
  setText(go, is ? "Sending…" : (asked?.verb ?? ""));
}

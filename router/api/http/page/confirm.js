// The confirmation dialog: it shows the effect of a change and asks for a reason and a name.

import { key, operatorName, post, setOperatorName } from "./api.js";
import { byId, setText, show } from "./dom.js";
import { askForKey } from "./keys.js";
import { fresh } from "./state.js";

const SHOWN_MS = 8000;
let timer = 0;

export function toast(message) {
  const node = byId("toast");
  show(node, true);
  setText(node, message);
  clearTimeout(timer);
  timer = setTimeout(() => show(node, false), SHOWN_MS);
}

const dialog = byId("act");
const go = byId("act-go");
const cancel = byId("act-cancel");
const why = byId("act-why");
const who = byId("act-who");
const value = byId("act-value");
const error = byId("act-error");
let pending = null;

/** `change`: {title, effect, verb, path, body(value), done, danger, field: {name, value, validate}}. */
export function confirm(change) {
  pending = change;
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
  setText(byId("act-stale"), `The data shown may be outdated. ${fresh.words}`);
  setBusy(false);
  dialog.showModal();
  (change.field ? value : why).focus();
}

export function startConfirm() {
  byId("act-form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (pending !== null && !go.disabled) send(pending);
  });
  cancel.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => (pending = null));
}

async function send(change) {
  const problem = findProblem(change);
  if (problem) {
    setText(error, problem.message);
    problem.input.focus();
    return;
  }
  const name = who.value.trim();
  const signature = { why: why.value.trim(), ...(key() === "" ? { who: name } : {}) };
  if (key() === "") setOperatorName(name);
  setBusy(true);
  setText(error, "");
  try {
    await post(change.path, { ...change.body(value.value.trim()), ...signature });
    if (pending === change) dialog.close();
    toast(change.done);
  } catch (failure) {
    if (pending === change) setText(error, failure.message);
    else toast(`${change.title}: ${failure.message}`);
    if (failure.status === 401) askForKey(failure);
  } finally {
    if (pending === change) setBusy(false);
  }
}

/** The first missing or invalid input as {input, message}, or null. */
function findProblem(change) {
  const invalid = change.field?.validate(value.value.trim());
  if (invalid) return { input: value, message: invalid };
  if (!why.value.trim()) return { input: why, message: "Enter a reason for the audit log." };
  if (key() === "" && !who.value.trim()) return { input: who, message: "Enter your name for the audit log." };
  return null;
}

function setBusy(isBusy) {
  go.disabled = isBusy;
  setText(go, isBusy ? "Sending…" : (pending?.verb ?? ""));
}

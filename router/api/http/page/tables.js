// The tables of knobs, shadow agreement and the audit log.

import { actionButton, byId, make, rows, setText, show, textRow } from "./dom.js";
import { count, number, percent, when, words } from "./format.js";
import { releaseKnob, setKnob } from "./operations.js";
import { fresh } from "./state.js";

const AUDIT_COLUMNS = [
  ["when", (entry) => when(entry.at_unix_ms, fresh.nowMs)],
  ["", (entry) => entry.who],
  ["", (entry) => words(entry.what)],
  ["", (entry) => entry.subject],
  ["", (entry) => entry.before],
  ["", (entry) => entry.after],
  ["full", (entry) => entry.why],
];
const auditTable = byId("audit-table");

export function showAudit(overview) {
  rows(auditTable, overview.audit, (entry) => String(entry.number), () => textRow(auditTable, AUDIT_COLUMNS));
  show(auditTable, overview.audit.length > 0);
  show(byId("no-audit"), overview.audit.length === 0);
}

const KNOB_COLUMNS = [
  ["", (knob) => knob.name],
  ["num", (knob) => number(knob.value)],
  ["num", (knob) => number(knob.configured)],
  ["", (knob) => knob.set_by],
  ["full", (knob) => knob.why],
  ["when", (knob) => when(knob.since_unix_ms, fresh.nowMs)],
];
const knobTable = byId("knob-table");

export function showKnobs(overview) {
  rows(knobTable, overview.knobs, (knob) => knob.name, knobRow);
}

function knobRow() {
  let shown = null;
  const row = textRow(knobTable, KNOB_COLUMNS);
  const set = actionButton("Set…", () => setKnob(shown));
  const release = actionButton("Release…", () => releaseKnob(shown));
  row.node.append(make("td", { class: "acts" }, set, release));
  const update = (knob) => {
    shown = knob;
    row.update(knob);
    row.node.classList.toggle("changed", knob.value !== knob.configured);
    show(release, isSetByOperator(knob));
    set.setAttribute("aria-label", `Set ${knob.name}…`);
    release.setAttribute("aria-label", `Release ${knob.name}…`);
  };
  return { node: row.node, update };
}

/** Only a value that an operator set can be released. */
const isSetByOperator = (knob) => knob.set_by !== "configuration" && knob.set_by !== "escalation";

const share = (some, all) => (all > 0 ? `${percent(some / all)} (${count(some)})` : "–");
const SHADOW_COLUMNS = [
  ["", (row) => row.intent],
  ["", (row) => row.primary],
  ["", (row) => row.shadow],
  ["", (row) => words(row.why)],
  ["num", (row) => count(row.compared)],
  ["num", (row) => share(row.agreed, row.compared)],
  ["num", (row) => percent(row.mean_similarity)],
  ["num", (row) => count(row.verified)],
  ["num", (row) => share(row.primary_passed, row.verified)],
  ["num", (row) => share(row.shadow_passed, row.verified)],
  ["num", (row) => count(row.only_shadow_passed)],
];
const shadowTable = byId("shadow-table");

export function showShadows(overview) {
  const found = overview.shadow_rows;
  rows(shadowTable, found, (row) => `${row.intent}\n${row.primary}\n${row.shadow}\n${row.why}`, () => textRow(shadowTable, SHADOW_COLUMNS));
  show(shadowTable, found.length > 0);
  show(byId("no-shadows"), found.length === 0);
  const counts = overview.shadow_counts;
  if (counts === null) return;
  const texts = ["ordered", "sent", "answered", "compared", "shed", "failed"].map((each) => `${count(counts[each])} ${each}`);
  setText(byId("shadow-counts"), `The table covers the last hour. Since this router started: ${texts.join(", ")}.`);
}

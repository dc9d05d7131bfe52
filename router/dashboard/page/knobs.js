// Both escalation knobs of every intent.

import { action } from "./button.js";
import { fresh } from "./context.js";
import { byId, make, show } from "./dom.js";
import { number, when } from "./format.js";
import { releaseKnob, setKnob } from "./operate.js";
import { rows, textRow } from "./table.js";

const COLUMNS = [
  ["", (knob) => knob.name],
  ["num", (knob) => number(knob.value)],
  ["num", (knob) => number(knob.configured)],
  ["", (knob) => knob.set_by],
  ["full", (knob) => knob.why],
  ["when", (knob) => when(knob.since_unix_ms, fresh.nowMs)],
];
const table = byId("knob-table");

export function showKnobs(overview) {
  rows(table, overview.knobs, (knob) => knob.name, knobRow);
}

function knobRow() {
  let shown = null;
  const row = textRow(table, COLUMNS);
  const set = action("Set…", () => setKnob(shown));
  const release = action("Release…", () => releaseKnob(shown));
  row.node.append(make("td", { class: "acts" }, set, release));
  const update = (knob) => {
    shown = knob;
    row.update(knob);
    row.node.classList.toggle("changed", knob.value !== knob.configured);
    show(release, isByHand(knob));
    set.setAttribute("aria-label", `Set ${knob.name}…`);
    release.setAttribute("aria-label", `Release ${knob.name}…`);
  };
  return { node: row.node, update };
}

/** What nobody set cannot be released. */
const isByHand = (knob) => knob.set_by !== "configuration" && knob.set_by !== "escalation";

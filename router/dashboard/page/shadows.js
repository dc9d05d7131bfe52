// How often a second opinion agreed.

import { byId, setText, show } from "./dom.js";
import { count, percent, words } from "./format.js";
import { rows, textRow } from "./table.js";

const share = (some, all) => (all > 0 ? `${percent(some / all)} (${count(some)})` : "–");
const COLUMNS = [
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
const table = byId("shadow-table");

export function showShadows(overview) {
  const found = overview.shadow_rows;
  rows(table, found, (row) => `${row.intent}\n${row.primary}\n${row.shadow}\n${row.why}`, () => textRow(table, COLUMNS));
  show(table, found.length > 0);
  show(byId("no-shadows"), found.length === 0);
  const counts = overview.shadow_counts;
  if (counts === null) return;
  const told = ["ordered", "sent", "answered", "compared", "shed", "failed"].map((each) => `${count(counts[each])} ${each}`);
  setText(byId("shadow-counts"), `Rows: the last hour. Since this router began: ${told.join(", ")}.`);
}

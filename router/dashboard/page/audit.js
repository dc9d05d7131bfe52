// Who changed what, and why.

import { fresh } from "./context.js";
import { byId, show } from "./dom.js";
import { when, words } from "./format.js";
import { rows, textRow } from "./table.js";

const COLUMNS = [
  ["when", (entry) => when(entry.at_unix_ms, fresh.nowMs)],
  ["", (entry) => entry.who],
  ["", (entry) => words(entry.what)],
  ["", (entry) => entry.subject],
  ["", (entry) => entry.before],
  ["", (entry) => entry.after],
  ["full", (entry) => entry.why],
];
const table = byId("audit-table");

export function showAudit(overview) {
  rows(table, overview.audit, (entry) => String(entry.number), () => textRow(table, COLUMNS));
  show(table, overview.audit.length > 0);
  show(byId("no-audit"), overview.audit.length === 0);
}

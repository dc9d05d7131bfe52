// Recent requests. Live while nothing is asked for; still while somebody points at a row.

import { get } from "./api.js";
import { fresh, shared } from "./context.js";
import { byId, make, setData, setOptions, setText, show } from "./dom.js";
import { count, seconds, when, words } from "./format.js";
import { lineOf } from "./receipt_line.js";
import { openStory } from "./story.js";
import { rows, textRow } from "./table.js";

const PAGE = 50;
const TONES = { answered: "good", refused: "warn", failed: "bad", cancelled: "note" };
const COLUMNS = [
  ["when", (line) => when(line.at_unix_ms, fresh.nowMs)],
  ["", null],
  ["", (line) => line.specialist],
  ["", (line) => line.intent],
  ["", null],
  ["num", (line) => seconds(line.ttft)],
  ["num", (line) => seconds(line.total)],
  ["num", (line) => (line.prompt_tokens ? count(line.prompt_tokens) : "–")],
  ["num", (line) => (line.completion_tokens ? count(line.completion_tokens) : "–")],
  ["full", null],
];
const table = byId("receipt-table");
const bySpecialist = byId("by-specialist");
const byOutcome = byId("by-outcome");
/** What was asked for; null: what the stream brings. */
let fetched = null;
let asking = 0;

export function startRequests() {
  for (const select of [bySpecialist, byOutcome]) select.addEventListener("change", () => fetchPage([]));
  byId("older").addEventListener("click", () => fetchPage(fetched ?? shown()));
  byId("find").addEventListener("submit", (event) => {
    event.preventDefault();
    const id = byId("find-id").value.trim();
    if (id) openStory(id, "");
  });
  for (const event of ["pointerleave", "focusout"]) table.addEventListener(event, () => setTimeout(showRequests, 0));
}

const shown = () => shared.overview?.receipts ?? [];
const isFiltered = () => bySpecialist.value !== "" || byOutcome.value !== "";
const isLookedAt = () => table.contains(document.activeElement) || (matchMedia("(hover: hover)").matches && table.matches(":hover"));

async function fetchPage(before) {
  const turn = ++asking;
  if (!isFiltered() && before.length === 0) {
    fetched = null;
    draw(shown()); // at once, wherever the pointer is
    return showRequests();
  }
  const query = new URLSearchParams({ limit: String(PAGE), specialist: bySpecialist.value, outcome: byOutcome.value });
  if (before.length) query.set("before", String(before.at(-1).at_unix_ms));
  for (const [name, value] of [...query]) if (value === "") query.delete(name);
  setText(byId("requests-state"), "Looking…");
  try {
    const more = (await get(`receipts?${query}`)).receipts.map(lineOf);
    if (turn !== asking) return undefined;
    fetched = [...before, ...more];
    draw(fetched);
    setText(byId("requests-state"), `${count(fetched.length)} shown${more.length < PAGE ? ", no older ones are kept" : ""}; not live.`);
  } catch (refused) {
    if (turn === asking) setText(byId("requests-state"), refused.message);
  }
  return undefined;
}

export function showRequests() {
  const { overview } = shared;
  if (overview === null) return;
  const names = overview.specialists.map((each) => [each.name, each.name]);
  setOptions(bySpecialist, [["", "all"], ...names]);
  if (fetched !== null || isFiltered()) return;
  const paused = isLookedAt();
  setText(byId("requests-state"), paused ? "Held still while you are here." : "");
  if (!paused) draw(shown());
}

function draw(lines) {
  rows(table, lines, (line) => `${line.request_id}\n${line.tenant}\n${line.at_unix_ms}`, requestRow);
  show(table, lines.length > 0);
  show(byId("no-receipts"), lines.length === 0);
}

function requestRow(first) {
  const row = textRow(table, COLUMNS);
  const link = make("button", { type: "button", class: "link mono" });
  const outcome = make("span", { class: "badge" });
  const tags = make("span", { class: "tags" });
  row.cells[1].append(link);
  row.cells[4].append(outcome);
  row.cells[9].append(tags);
  row.node.addEventListener("click", () => openStory(first.request_id, first.tenant));
  const update = (line) => {
    row.update(line);
    setText(link, short(line.request_id));
    link.setAttribute("aria-label", `Open request ${line.request_id}`);
    link.title = line.request_id;
    const reason = line.reason && line.reason !== "unspecified" ? `: ${words(line.reason)}` : "";
    setText(outcome, `${line.outcome}${reason}`);
    setData(outcome, "tone", TONES[line.outcome] ?? "note");
    const told = tagsOf(line);
    if (tags.childElementCount !== told.length) tags.replaceChildren(...told.map((each) => make("span", { class: "badge" }, each)));
    row.cells[9].classList.toggle("none", told.length === 0);
  };
  return { node: row.node, update };
}

const short = (id) => (id.length > 14 ? `${id.slice(0, 12)}…` : id);

function tagsOf(line) {
  const told = [];
  if (line.spilled) told.push(`spilled from ${line.primary}`);
  else if (line.instead_of) told.push(`instead of ${line.instead_of}`);
  if (line.attempts > 1) told.push(`${line.attempts} attempts`);
  if (line.times_preempted) told.push(`preempted ${line.times_preempted}×`);
  if (line.shadow) told.push(`shadow ${line.shadow}`);
  if (line.cache_hit_tokens) told.push(`${count(line.cache_hit_tokens)} from cache`);
  return told;
}

// Recent requests: live unless a filter or a page is chosen, and paused while the pointer is on a row.

import { get } from "./api.js";
import { byId, make, rows, setData, setOptions, setText, show, textRow } from "./dom.js";
import { count, seconds, when, words } from "./format.js";
import { lineOf } from "./receipt_line.js";
import { fresh, shared } from "./state.js";
import { openStory } from "./story.js";

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
/** The fetched lines, or null while the table shows the event stream. */
let fetched = null;
let latestFetch = 0;

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
const isInUse = () => table.contains(document.activeElement) || (matchMedia("(hover: hover)").matches && table.matches(":hover"));

async function fetchPage(before) {
  const turn = ++latestFetch;
  if (!isFiltered() && before.length === 0) {
    fetched = null;
    draw(shown()); // redraw immediately, even while the pointer is on the table
    return showRequests();
  }
  const query = new URLSearchParams({ limit: String(PAGE), specialist: bySpecialist.value, outcome: byOutcome.value });
  if (before.length) query.set("before", String(before.at(-1).at_unix_ms));
  for (const [name, value] of [...query]) if (value === "") query.delete(name);
  setText(byId("requests-state"), "Loading…");
  try {
    const more = (await get(`receipts?${query}`)).receipts.map(lineOf);
    if (turn !== latestFetch) return undefined;
    fetched = [...before, ...more];
    draw(fetched);
    setText(byId("requests-state"), `${count(fetched.length)} shown${more.length < PAGE ? "; no older requests are kept" : ""}; not live.`);
  } catch (error) {
    if (turn === latestFetch) setText(byId("requests-state"), error.message);
  }
  return undefined;
}

export function showRequests() {
  const { overview } = shared;
  if (overview === null) return;
  const names = overview.specialists.map((each) => [each.name, each.name]);
  setOptions(bySpecialist, [["", "all"], ...names]);
  if (fetched !== null || isFiltered()) return;
  const paused = isInUse();
  setText(byId("requests-state"), paused ? "Paused while the table is in use." : "");
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
    const texts = tagsOf(line);
    if (tags.childElementCount !== texts.length) tags.replaceChildren(...texts.map((each) => make("span", { class: "badge" }, each)));
    row.cells[9].classList.toggle("none", texts.length === 0);
  };
  return { node: row.node, update };
}

const short = (id) => (id.length > 14 ? `${id.slice(0, 12)}…` : id);

function tagsOf(line) {
  const texts = [];
  if (line.spilled) texts.push(`spilled from ${line.primary}`);
  else if (line.instead_of) texts.push(`instead of ${line.instead_of}`);
  if (line.attempts > 1) texts.push(`${line.attempts} attempts`);
  if (line.times_preempted) texts.push(`preempted ${line.times_preempted}×`);
  if (line.shadow) texts.push(`shadow ${line.shadow}`);
  if (line.cache_hit_tokens) texts.push(`${count(line.cache_hit_tokens)} from cache`);
  return texts;
}

// Plots of the specialist whose details are open. There is no plot of all specialists together: it would not lead to an action.

import { byId, make, setOptions } from "./dom.js";
import { clock, number, percent, seconds } from "./format.js";
import { Plot } from "./plot.js";
import { series, shared } from "./state.js";
import { currentView, detailsHash } from "./views.js";

const KINDS = [
  { title: "TTFT p95", of: (point) => point.ttft_p95, format: seconds, objective: "ttft_p95" },
  { title: "ITL p95", of: (point) => point.itl_p95, format: seconds, objective: "itl_p95" },
  {
    title: "Admission to first token p95",
    of: (point) => point.admission_to_first_token_p95,
    format: seconds,
    objective: "admission_to_first_token_p95",
  },
  { title: "Pass rate", of: (point) => point.pass_rate, format: percent, bounds: "near", floor: true, aimName: "floor" },
  {
    title: "Requests per second",
    of: (point) => point.requests,
    second: (point) => point.refused,
    secondName: "refused",
    format: number,
  },
  { title: "Tokens per second", of: (point) => point.completion_tokens, format: number },
  {
    title: "Running",
    of: (point) => point.running,
    second: (point) => point.waiting,
    secondName: "waiting",
    format: number,
  },
  { title: "KV blocks used", of: (point) => point.blocks_used, format: percent, bounds: "whole" },
  { title: "Cache reuse", of: (point) => point.cache_reuse, format: percent, bounds: "whole" },
  { title: "Error budget burn, worst target", of: (point) => point.burn, format: number, aim: 1, aimName: "sustainable rate" },
];
const MAX_ROWS = 30;
const who = byId("plot-who");
const span = byId("plot-span");
const figures = byId("plot-figures");
const plots = KINDS.map((kind) => new Plot(kind));

export function startPlots() {
  byId("plot-grid").append(...plots.map((plot) => plot.node));
  who.addEventListener("change", () => (location.hash = detailsHash(who.value)));
  span.addEventListener("change", showPlots);
  figures.addEventListener("toggle", showPlots);
}

export function showPlots() {
  const { overview } = shared;
  const { view: current, name } = currentView();
  if (overview === null || current !== "specialist") return;
  setOptions(who, overview.specialists.map((each) => [each.name, each.name]));
  who.value = name;
  const view = overview.specialists.find((each) => each.name === name);
  if (!view) return;
  const points = series.of(view.name, Number(span.value));
  plots.forEach((plot, index) => plot.update(points, aimOf(KINDS[index], view), series.stepSeconds, view.name));
  if (figures.open) showFigures(points, view.name);
}

function aimOf(kind, view) {
  if (kind.floor) return view.slo?.floor ?? null;
  if (kind.aim) return kind.aim;
  return view.slo?.objectives.find((each) => each.name === kind.objective)?.target ?? null;
}

/** The plots as a table for screen readers, with a bounded number of rows. */
function showFigures(points, name) {
  const every = Math.max(1, Math.ceil(points.length / MAX_ROWS));
  const chosen = points.filter((_, index) => (points.length - 1 - index) % every === 0).reverse();
  const state = `${name} ${chosen.length} ${chosen[0]?.at_unix_ms}`;
  if (figures.dataset.shown === state) return;
  figures.dataset.shown = state;
  const columns = KINDS.flatMap((kind) => [[kind.title, kind.of, kind.format], ...secondOf(kind)]);
  const head = [["Time"], ...columns].map(([title]) => make("th", { scope: "col" }, title));
  const rows = chosen.map((point) => {
    const cells = columns.map(([, of, format]) => make("td", { class: "num" }, format(of(point))));
    return make("tr", {}, make("th", { scope: "row" }, clock(point.at_unix_ms)), ...cells);
  });
  const caption = make("caption", { class: "unseen" }, `${name} over time, newest first`);
  byId("plot-table").replaceChildren(
    make("table", { class: "table" }, caption, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows)),
  );
}

function secondOf(kind) {
  const title = kind.secondName ? kind.secondName.charAt(0).toUpperCase() + kind.secondName.slice(1) : "";
  return kind.second ? [[title, kind.second, kind.format]] : [];
}

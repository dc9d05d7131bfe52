// Latencies and correctness of one specialist against the targets of its configuration.

import { make, setData, setText, setWidth, show } from "./dom.js";
import { SEPARATOR, count, duration, NOTHING, number, percent, seconds } from "./format.js";

const ROWS = [
  ["ttft", "TTFT", "time to first token"],
  ["itl", "ITL", "between tokens"],
  ["admission_to_first_token", "First token", "from admission"],
];
const QUANTILES = ["p50", "p95", "p99"];
const NAMES = { admission_to_first_token: "first token" };

export const objectivesOf = (slo) => new Map((slo?.objectives ?? []).map((each) => [each.name, each]));

export function sloPart(name) {
  const cells = new Map();
  const rows = ROWS.map(([field, title, about]) => {
    const row = make("tr", {}, make("th", { scope: "row", title: about }, title));
    for (const quantile of QUANTILES) {
      const cell = objectiveCell(seconds, "≤");
      cells.set(`${field}_${quantile}`, cell);
      row.append(cell.node);
    }
    return row;
  });
  const corner = make("th", { scope: "col" });
  const head = make("tr", {}, corner, ...QUANTILES.map((each) => make("th", { scope: "col" }, each)));
  const caption = make("caption", { class: "unseen" }, `Latencies of ${name}`);
  const table = make("table", { class: "slo" }, caption, make("thead", {}, head), make("tbody", {}, ...rows));
  const summary = make("p", { class: "small-text row" });
  const correct = correctness();
  const node = make("div", { class: "part" }, table, summary, ...correct.nodes);

  function update(view) {
    const slo = view.slo;
    const objectives = objectivesOf(slo);
    for (const [field] of ROWS) {
      for (const quantile of QUANTILES) {
        const id = `${field}_${quantile}`;
        cells.get(id).update(slo?.[field]?.[quantile] ?? null, objectives.get(id));
      }
    }
    setText(corner, slo?.window_seconds ? `last ${duration(slo.window_seconds)}` : "");
    setText(summary, targetSummary(slo));
    correct.update(slo, objectives.get("correctness"));
  }
  return { node, update };
}

/** A figure and its objective, marked in words and by a sign as met or missed. `title` names its column on a phone. */
export function objectiveCell(format, comparison, title, formatTarget = format) {
  const value = make("span", { class: "value" });
  const sign = make("span", { "aria-hidden": "true" });
  const verdict = make("span", { class: "unseen" });
  const target = make("span");
  const aim = make("span", { class: "aim" }, sign, verdict, target);
  const node = make("td", { class: "num", "data-of": title }, value, aim);
  const update = (current, objective) => {
    setText(value, format(current));
    const known = objective !== undefined && isMeasured(objective);
    value.classList.toggle("missed-value", known && !objective.met);
    aim.classList.toggle("met", known && objective.met);
    aim.classList.toggle("missed", known && !objective.met);
    setText(sign, known ? (objective.met ? "✓ " : "✗ ") : "");
    setText(verdict, known ? (objective.met ? "met: " : "missed: ") : "");
    setText(target, objective ? `${comparison}\u00a0${formatTarget(objective.target)}` : "");
  };
  return { node, update };
}

/** Targets met, and the burn rates of the worst target by window. */
function targetSummary(slo) {
  const objectives = slo?.objectives ?? [];
  if (!objectives.length) return "No targets are configured.";
  const texts = [metSummary(slo)];
  const worst = worstBurn(objectives);
  if (worst) {
    const burns = worst.burns.filter((each) => each.rate !== null);
    const rates = burns.map((each) => `${number(each.rate)}× in ${duration(each.window_seconds)}`).join(", ");
    texts.push(`${label(worst.name)} burns ${rates}`);
  }
  if (slo.preempted_once) texts.push(`${percent(slo.preempted_once)} preempted`);
  if (slo.routers > 1) texts.push(`${count(slo.routers)} routers`);
  return texts.join(SEPARATOR);
}

/** A target without samples is neither met nor missed. If all samples are failures, there is no current figure. */
export const isMeasured = ({ current, burns }) => current !== null || burns.some((each) => each.samples > 0);

export function countMet(slo) {
  const objectives = slo?.objectives ?? [];
  const measured = objectives.filter(isMeasured);
  return { all: objectives.length, measured: measured.length, met: measured.filter((each) => each.met).length };
}

function metSummary(slo) {
  const { all, measured, met } = countMet(slo);
  const rest = all - measured;
  if (rest === 0) return `${met} of ${all} targets met`;
  if (measured === 0) return `${rest} ${rest === 1 ? "target" : "targets"}, not measured yet`;
  return `${met} of ${measured} measured targets met${SEPARATOR}${rest} not measured yet`;
}

function worstBurn(objectives) {
  const burn = (each) => Math.max(...each.burns.map((one) => one.rate ?? 0), 0);
  const [worst] = [...objectives].sort((one, other) => burn(other) - burn(one));
  return worst && burn(worst) > 0 ? worst : null;
}

function label(objective) {
  const [, field, quantile] = /^(.*?)(?:_(p\d+))?$/.exec(objective);
  return `${NAMES[field] ?? field.toUpperCase().replace("CORRECTNESS", "correctness")}${quantile ? ` ${quantile}` : ""}`;
}

function correctness() {
  const title = make("span");
  const details = make("span", { class: "small-text" });
  const fill = make("span", { class: "fill" });
  const floor = make("span", { class: "floor" });
  const bar = make("div", { class: "rate", "aria-hidden": "true" }, fill, floor);
  const line = make("p", { class: "row apart" }, title, details);

  function update(slo, objective) {
    const rate = slo?.pass_rate ?? null;
    const least = slo?.floor ?? objective?.target ?? null;
    const over = slo?.correctness_window_seconds ? `, ${duration(slo.correctness_window_seconds)}` : "";
    setText(title, `Correctness ${rate === null ? NOTHING : percent(rate)}`);
    const of = `of ${count(slo?.judged ?? 0)} evaluated${over}`;
    const met = rate === null || least === null ? null : objective ? objective.met : rate >= least;
    const verdict = met === null ? "floor" : met ? "✓ met, floor" : "✗ missed, floor";
    setText(details, least === null ? `${of} · no floor` : `${of} · ${verdict} ${percent(least)}${slo?.floor_learned ? " (learned)" : ""}`);
    details.classList.toggle("missed", met === false);
    setWidth(fill, rate ?? 0);
    show(floor, least !== null);
    floor.style.left = `${100 * (least ?? 0)}%`;
    setData(bar, "known", rate === null ? "no" : "yes");
  }
  return { nodes: [line, bar], update };
}

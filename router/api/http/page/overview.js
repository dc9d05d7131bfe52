// The overview: figures of the whole ensemble, and one row for each specialist, in the order of the configuration.

import { byId, keyed, make, rows, setAttribute, setData, setText, show } from "./dom.js";
import { SEPARATOR, ago, count, duration, NOTHING, number, percent, perSecond, rate, seconds, sharePercent } from "./format.js";
import { breakerState } from "./details_breaker.js";
import { countMet, isMeasured, objectiveCell, objectivesOf } from "./details_slo.js";
import { laneName, laneOf } from "./operations.js";
import { spark } from "./plot.js";
import { fresh, series } from "./state.js";
import { signOf, troubleOf, wordOf, worstBySubject } from "./troubles.js";
import { detailsHash } from "./views.js";

const SPARK_SECONDS = 900;
const table = byId("overview-table");
const titles = [...table.tHead.rows[0].cells].map((cell) => cell.firstChild.textContent.trim());
const filter = byId("filter");
const only = byId("only-troubled");
let last = null;
let troubles = new Map();

const filterText = () => filter.value.trim().toLowerCase();
const isReady = ({ info }) => info.status === "serving" && info.health_breaker !== "open";

export function startOverview() {
  filter.addEventListener("input", () => last && showOverview(last));
  only.addEventListener("change", () => last && showOverview(last));
}

/** The link that opens a specialist's details, or null. */
export function rowLink(name) {
  return [...table.querySelectorAll("tbody a")].find((link) => link.hash === detailsHash(name)) ?? null;
}

export function showOverview(overview) {
  last = overview;
  troubles = worstBySubject(overview.troubles);
  rows(table, overview.specialists, (view) => view.name, specialistRow);
  const shown = [...table.tBodies[0].rows].filter((row) => !row.hidden).length;
  show(table, shown > 0);
  show(byId("no-match"), shown === 0);
  setText(byId("specialists-title"), filterText() || only.checked ? `Specialists, ${shown} of ${overview.specialists.length}` : "Specialists");
  const unrouted = overview.unrouted_per_second;
  setText(byId("unrouted"), unrouted > 0 ? `${perSecond(unrouted)} without a specialist` : "");
  const slo = overview.specialists.find((each) => each.slo)?.slo;
  for (const node of table.querySelectorAll(".window")) setText(node, slo?.window_seconds ? duration(slo.window_seconds) : "");
  setText(table.querySelector(".judged"), slo?.correctness_window_seconds ? duration(slo.correctness_window_seconds) : "");
  keyed(byId("totals"), totalsOf(overview), ([name]) => name, total);
}

function total([name]) {
  const value = make("dd");
  const node = make("div", {}, make("dt", {}, name), value);
  const update = ([, text, missed]) => {
    setText(value, missed ? `✗ ${text}` : text);
    value.classList.toggle("missed", Boolean(missed));
  };
  return { node, update };
}

/** [name, text, whether it is marked]. Latencies have no meaning for the whole ensemble. */
function totalsOf({ specialists }) {
  const sum = (of) => specialists.reduce((all, view) => all + (of(view) || 0), 0);
  const replicas = specialists.flatMap((view) => view.replicas);
  const ready = replicas.filter(isReady).length;
  const load = (field) => replicas.reduce((all, { info, load: report }) => all + ((report ?? info)[field] || 0), 0);
  const measured = specialists.flatMap((view) => view.slo?.objectives ?? []).filter(isMeasured);
  const met = measured.filter((each) => each.met).length;
  const requests = sum((view) => view.rates?.requests);
  const share = (part) => (requests > 0 ? sharePercent(part / requests) : NOTHING);
  return [
    ["Requests/s", rate(requests)],
    ["Tokens/s", number(sum((view) => view.rates?.completion_tokens))],
    ["Refused", share(sum((view) => view.rates?.refused))],
    ["Failed", share(sum((view) => view.rates?.failed))],
    ["Running", count(load("running"))],
    ["Waiting", count(load("waiting"))],
    ["Replicas ready", `${count(ready)} of ${count(replicas.length)}`, ready < replicas.length],
    ["Restarts", count(sum((view) => restartsOf(view).number))],
    ["Objectives met", measured.length ? `${count(met)} of ${count(measured.length)}` : NOTHING, met < measured.length],
  ];
}

function restartsOf({ replicas }) {
  const number = replicas.reduce((all, { info }) => all + (info.restarts || 0), 0);
  const at = Math.max(0, ...replicas.map(({ info }) => info.last_restart_unix_ms || 0));
  return { number, at, why: replicas.find(({ info }) => at && info.last_restart_unix_ms === at)?.info.last_restart_reason ?? "" };
}

/** A cell with a figure and a line below it. On a phone it carries its column's title. */
function figureCell(index, kind = "num") {
  const value = make("span", { class: "value" });
  const below = make("span", { class: "below" });
  return { node: make("td", { class: kind, "data-of": titles[index] }, value, below), value, below };
}

function specialistRow({ name }) {
  const link = make("a", { href: detailsHash(name) }, name);
  const [severity, missed, about] = [make("span"), make("span", { class: "missed" }), make("span")];
  const state = make("span", { class: "below" }, severity, missed, about);
  const breaker = make("span", { class: "badge" });
  const lane = make("span", { class: "below" });
  const [replicas, requests, refused] = [figureCell(2, ""), figureCell(3), figureCell(6)];
  const [ttft, itl, passed] = [objectiveCell(seconds, "≤", titles[4]), objectiveCell(seconds, "≤", titles[5]), objectiveCell(sharePercent, "≥", titles[7], percent)];
  const recent = spark();
  const node = make(
    "tr",
    {},
    make("th", { scope: "row" }, link, state),
    make("td", { class: "lane", "data-of": titles[1] }, breaker, lane),
    ...[replicas, requests, ttft, itl, refused, passed].map((cell) => cell.node),
    make("td", { class: "trend" }, recent.node),
  );
  node.addEventListener("click", (event) => {
    if (!event.target.closest("a") && getSelection().isCollapsed) location.hash = link.hash;
  });

  function fill(view, trouble) {
    const { slo, rates } = view;
    setData(node, "severity", trouble?.severity ?? "none");
    const missing = missedOf(slo);
    setText(severity, trouble ? `${signOf(trouble.severity)} ${wordOf(trouble.severity)}${missing ? SEPARATOR : ""}` : "");
    setText(missed, missing);
    setText(about, trouble || missing ? "" : view.describe);
    state.classList.toggle("state", trouble !== undefined);
    setAttribute(state, "title", view.describe);
    const { text, tone } = breakerState(view.breaker);
    setText(breaker, text);
    setData(breaker, "tone", tone);
    const serving = laneOf(view, "serving");
    setText(lane, serving ? [`${laneName(serving)} #${serving.number}`, view.fresh ? "fresh" : ""].filter(Boolean).join(SEPARATOR) : "");
    fillReplicas(view);
    setText(requests.value, rate(rates?.requests));
    setText(requests.below, rates ? `${number(rates.completion_tokens)} tokens/s` : "");
    setText(refused.value, rates?.requests > 0 ? sharePercent(rates.refused / rates.requests) : NOTHING);
    setText(refused.below, rates?.failed ? `${perSecond(rates.failed)} failed` : rates?.spilled ? `${perSecond(rates.spilled)} spilled` : "");
    const aims = objectivesOf(slo);
    ttft.update(slo?.ttft?.p95 ?? null, aims.get("ttft_p95"));
    itl.update(slo?.itl?.p95 ?? null, aims.get("itl_p95"));
    passed.update(slo?.pass_rate ?? null, aims.get("correctness") ?? floorOf(slo));
    const target = aims.get("ttft_p95")?.target ?? null;
    recent.update(series.of(name, SPARK_SECONDS).map((point) => point.ttft_p95), target, `${name}: TTFT p95`);
  }

  function fillReplicas(view) {
    const ready = view.replicas.filter(isReady).length;
    const isShort = ready < view.replicas.length || ready === 0;
    setText(replicas.value, `${isShort ? "✗ " : ""}${count(ready)}/${count(view.replicas.length)}`);
    replicas.value.classList.toggle("missed", isShort);
    const { number: times, at, why } = restartsOf(view);
    setText(replicas.below, times ? `${count(times)} ${times === 1 ? "restart" : "restarts"}${SEPARATOR}${ago(at, fresh.nowMs)}` : "");
    setAttribute(replicas.below, "title", why);
  }

  const update = (view) => {
    const trouble = troubleOf(view, troubles);
    const is = name.toLowerCase().includes(filterText()) && (!only.checked || trouble !== undefined);
    show(node, is);
    if (is) fill(view, trouble);
  };
  return { node, update };
}

/** A floor counts as an objective even if none is configured. */
function floorOf(slo) {
  const floor = slo?.floor ?? null;
  return floor === null ? undefined : { target: floor, current: slo.pass_rate, met: slo.pass_rate >= floor, burns: [] };
}

/** Missed objectives of all kinds, also those without a column. */
function missedOf(slo) {
  const { measured, met } = countMet(slo);
  return met < measured ? `✗ ${measured - met} of ${measured} missed` : "";
}

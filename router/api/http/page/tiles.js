// The tiles of all specialists, in the order of the configuration.

import { byId, keyed, make, setData, setText, show } from "./dom.js";
import { SEPARATOR, number, percent, perSecond } from "./format.js";
import { spark } from "./plot.js";
import { choosePlot } from "./plots.js";
import { fresh, series } from "./state.js";
import { breakerPart } from "./tile_breaker.js";
import { lanePart } from "./tile_lane.js";
import { replicaPart } from "./tile_replicas.js";
import { sloPart } from "./tile_slo.js";
import { signOf, wordOf, worstBySubject } from "./troubles.js";

const SPARK_SECONDS = 900;
let made = 0;

/** `plot(name)` shows the specialist's plots. */
export function tile(name, plot) {
  const state = make("span", { class: "state" });
  const describe = make("p", { class: "describe" });
  const link = make("a", { class: "plots-link", href: "#plots", "aria-label": `${name} over time` }, "over time");
  link.addEventListener("click", () => plot(name));
  const title = make("h3", { id: `tile-${++made}` }, name);
  const parts = [sloPart(name), breakerPart(), lanePart(), replicaPart(name)];
  const rates = make("p", { class: "row small-text" });
  const recent = spark();
  const trend = make("div", { class: "trend" }, recent.node, make("span", { "aria-hidden": "true" }, "TTFT p95, 15 min"));
  const head = make("div", { class: "tile-head" }, title, state, link, describe);
  const node = make("article", { class: "tile", "aria-labelledby": title.id }, head, trend, rates);
  node.append(...parts.map((part) => part.node));

  function update(view, trouble) {
    setData(node, "severity", trouble?.severity ?? "none");
    setText(state, trouble ? `${signOf(trouble.severity)} ${wordOf(trouble.severity)}` : "");
    setText(describe, view.describe);
    if (describe.title !== view.describe) describe.title = view.describe;
    setText(rates, ratesOf(view.rates));
    const target = view.slo?.objectives.find((each) => each.name === "ttft_p95")?.target ?? null;
    recent.update(series.of(view.name, SPARK_SECONDS).map((point) => point.ttft_p95), target, `${view.name}: TTFT p95`);
    for (const part of parts) part.update(view, fresh.nowMs);
  }

  return { node, update, matches: (text) => name.toLowerCase().includes(text), shown: (is) => show(node, is) };
}

/** Rates of the last minute. Zero rates are left out. */
function ratesOf(rates) {
  if (!rates) return "";
  const texts = [
    `${number(rates.requests)} requests/s`,
    rates.refused ? `${perSecond(rates.refused)} refused` : "",
    rates.failed ? `${perSecond(rates.failed)} failed` : "",
    rates.spilled ? `${perSecond(rates.spilled)} spilled` : "",
    rates.shadowed ? `${perSecond(rates.shadowed)} shadowed` : "",
    `${number(rates.completion_tokens)} tokens/s`,
    rates.confidence === null ? "" : `confidence ${percent(rates.confidence)}`,
  ];
  return texts.filter(Boolean).join(SEPARATOR);
}

const RANK = { critical: 3, warning: 2, note: 1 };
const filter = byId("filter");
const only = byId("only-troubled");
let last = null;
let troubles = new Map();

const filterText = () => filter.value.trim().toLowerCase();

export function startTiles() {
  filter.addEventListener("input", () => last && showTiles(last));
  only.addEventListener("change", () => last && showTiles(last));
}

export function showTiles(overview) {
  last = overview;
  troubles = worstBySubject(overview.troubles);
  keyed(byId("tiles"), overview.specialists, (view) => view.name, (view) => {
    const part = tile(view.name, choosePlot);
    return {
      node: part.node,
      update: (now) => {
        const trouble = troubleOf(now, troubles);
        const is = part.matches(filterText()) && (!only.checked || trouble !== undefined);
        part.shown(is);
        if (is) part.update(now, trouble);
      },
    };
  });
  const shown = [...byId("tiles").children].filter((node) => !node.hidden).length;
  show(byId("no-tiles"), shown === 0);
  setText(byId("specialists-title"), filterText() || only.checked ? `Specialists, ${shown} of ${overview.specialists.length}` : "Specialists");
  const rate = overview.unrouted_per_second;
  setText(byId("unrouted"), rate > 0 ? `${perSecond(rate)} without a specialist` : "");
}

/** The worst problem of the specialist or its replicas. */
function troubleOf(view, troubles) {
  const subjects = [view.name, ...view.replicas.map((each) => each.info.name)];
  const found = subjects.map((subject) => troubles.get(subject)).filter(Boolean);
  return found.sort((one, other) => RANK[other.severity] - RANK[one.severity])[0];
}

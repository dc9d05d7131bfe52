// One specialist.

import { fresh, series } from "./context.js";
import { make, setData, setText, show } from "./dom.js";
import { APART, number, percent, perSecond } from "./format.js";
import { spark } from "./spark.js";
import { breakerPart } from "./tile_breaker.js";
import { lanePart } from "./tile_lane.js";
import { replicaPart } from "./tile_replicas.js";
import { sloPart } from "./tile_slo.js";
import { signOf, wordOf } from "./troubles.js";

const SPARK_SECONDS = 900;
let made = 0;

/** `plot(name)` shows what it did over time. */
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

/** Of the last minute; what never happens is not told. */
function ratesOf(rates) {
  if (!rates) return "";
  const told = [
    `${number(rates.requests)} requests/s`,
    rates.refused ? `${perSecond(rates.refused)} refused` : "",
    rates.failed ? `${perSecond(rates.failed)} failed` : "",
    rates.spilled ? `${perSecond(rates.spilled)} spilled` : "",
    rates.shadowed ? `${perSecond(rates.shadowed)} shadowed` : "",
    `${number(rates.completion_tokens)} tokens/s`,
    rates.confidence === null ? "" : `confidence ${percent(rates.confidence)}`,
  ];
  return told.filter(Boolean).join(APART);
}

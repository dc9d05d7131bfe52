// The details of one specialist: objectives, breaker, lane, replicas and operations. The plots are in plots.js.

import { byId, keyed, make, setData, setText, show } from "./dom.js";
import { SEPARATOR, number, percent, perSecond } from "./format.js";
import { breakerPart } from "./details_breaker.js";
import { lanePart } from "./details_lane.js";
import { replicaPart } from "./details_replicas.js";
import { sloPart } from "./details_slo.js";
import { fresh } from "./state.js";
import { findingItem, headlined, identity, isAbout, signOf, troubleOf, wordOf, worstBySubject } from "./troubles.js";
import { currentView } from "./views.js";

function panels(name) {
  const parts = [sloPart(name), breakerPart(), lanePart(), replicaPart(name)];
  const rates = make("p", { class: "small-text" });
  const panel = (...nodes) => make("div", { class: "panel" }, ...nodes);
  const [slo, breaker, lane, replicas] = parts.map((part) => part.node);
  const node = make("article", { class: "details", "aria-label": name }, panel(rates, slo), panel(breaker, lane), panel(replicas));
  const update = (view) => {
    setText(rates, ratesOf(view.rates));
    for (const part of parts) part.update(view, fresh.nowMs);
  };
  return { node, update };
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

export function showDetails(overview) {
  const { view: current, name } = currentView();
  if (current !== "specialist") return;
  const view = overview.specialists.find((each) => each.name === name);
  const trouble = view && troubleOf(view, worstBySubject(overview.troubles));
  setText(byId("details-title"), name);
  setText(byId("details-about"), view?.describe ?? "");
  setText(byId("details-state"), trouble ? `${signOf(trouble.severity)} ${wordOf(trouble.severity)}` : "");
  setData(byId("specialist"), "severity", trouble?.severity ?? "none");
  show(byId("no-details"), !view);
  setText(byId("no-details"), view ? "" : `The ensemble has no specialist named “${name}”.`);
  show(byId("details-plots"), Boolean(view));
  keyed(byId("details-troubles"), view ? overview.troubles.filter((each) => isAbout(each, view) && each !== headlined(overview)) : [], identity, findingItem);
  keyed(byId("details"), view ? [view] : [], (each) => each.name, (each) => panels(each.name));
}

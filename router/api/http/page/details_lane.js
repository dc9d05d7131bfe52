// The serving lane of a specialist and its candidate.

import { actionButton, make, setData, setText, show } from "./dom.js";
import { ago, SEPARATOR, count, percent } from "./format.js";
import { laneName, laneOf, promoteLane, rollBackLane } from "./operations.js";

export function lanePart() {
  let view = null;
  const serving = make("span");
  const fresh = make("span", { class: "badge" }, "fresh");
  setData(fresh, "tone", "warn");
  const since = make("span", { class: "muted small-text" });
  const candidate = make("p", { class: "small-text quoted" });
  const promote = actionButton("Promote…", () => promoteLane(view));
  const back = actionButton("Roll back…", () => rollBackLane(view));
  const acts = make("div", { class: "acts-row" }, promote, back);
  const head = make("div", { class: "part-head" }, make("span", {}, "Lane"), serving, fresh, since, acts);
  const node = make("div", { class: "part" }, head, candidate);

  function update(given, now) {
    view = given;
    const lane = laneOf(view, "serving");
    const waiting = laneOf(view, "candidate");
    const previous = laneOf(view, "previous");
    setText(serving, lane ? `${laneName(lane)} #${lane.number}` : "unknown");
    show(fresh, view.fresh);
    setText(since, lane?.since_unix_ms ? ago(lane.since_unix_ms, now) : "");
    show(candidate, waiting !== null);
    if (waiting) setText(candidate, candidateOf(waiting, view.candidate));
    show(promote, waiting !== null);
    show(back, waiting !== null || previous !== null);
    setText(back, waiting ? "Drop candidate…" : "Roll back…");
    show(acts, waiting !== null || previous !== null);
    promote.setAttribute("aria-label", `Promote the candidate of ${view.name}…`);
    back.setAttribute("aria-label", `${waiting ? "Drop the candidate of" : "Roll back the lane of"} ${view.name}…`);
  }
  return { node, update };
}

function candidateOf(lane, breaker) {
  const rate = lane.pass_rate ?? breaker?.pass_rate ?? null;
  const samples = lane.samples || breaker?.samples || 0;
  const judged = rate === null ? "not evaluated yet" : `${percent(rate)} of ${count(samples)} passed`;
  const resident = `on ${count(lane.resident)} of ${count(lane.replicas)} replicas`;
  return [`Candidate ${laneName(lane)} #${lane.number}`, judged, resident, lane.outlook].filter(Boolean).join(SEPARATOR);
}

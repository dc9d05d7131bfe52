// The correctness breaker of a specialist: its state, its hold and its actions.

import { actionButton, make, setData, setText, show } from "./dom.js";
import { SEPARATOR, count, duration, percent } from "./format.js";
import { holdBreaker, releaseBreaker } from "./operations.js";

const TONES = { closed: "good", shadow_only: "bad", recovering: "warn" };
const STATES = { closed: "closed", shadow_only: "open, shadows only", recovering: "open, recovering" };

/** The state of a breaker, or of its hold, as {text, tone}. */
export function breakerState(breaker) {
  if (breaker === null) return { text: "no breaker", tone: "" };
  const { hold, state } = breaker;
  if (hold) return { text: `held ${hold}`, tone: hold === "open" ? "bad" : "warn" };
  return { text: STATES[state] ?? state, tone: TONES[state] ?? "note" };
}

export function breakerPart() {
  let view = null;
  const badge = make("span", { class: "badge" });
  const since = make("span", { class: "muted small-text" });
  const hold = make("p", { class: "quoted small-text" });
  const outlook = make("p", { class: "muted small-text" });
  const open = actionButton("Hold open…", () => holdBreaker(view, "open"));
  const close = actionButton("Hold closed…", () => holdBreaker(view, "closed"));
  const release = actionButton("Release…", () => releaseBreaker(view));
  const acts = make("div", { class: "acts-row" }, open, close, release);
  const head = make("div", { class: "part-head" }, make("span", {}, "Breaker"), badge, since, acts);
  const node = make("div", { class: "part" }, head, hold, outlook);

  function update(given, now) {
    view = given;
    const breaker = view.breaker;
    show(node, breaker !== null);
    if (breaker === null) return;
    const held = breaker.hold;
    const { text, tone } = breakerState(breaker);
    setText(badge, text);
    setData(badge, "tone", tone);
    setText(since, breaker.since_unix_ms ? duration((now - breaker.since_unix_ms) / 1000) : "");
    show(hold, Boolean(held));
    setText(hold, held ? `${breaker.hold_by}: ${breaker.hold_why}` : "");
    setText(outlook, outlookOf(breaker));
    show(open, held !== "open");
    show(close, held !== "closed");
    show(release, Boolean(held));
    for (const [button, what] of [[open, "Hold open"], [close, "Hold closed"], [release, "Release"]]) {
      button.setAttribute("aria-label", `${what} the breaker of ${view.name}…`);
    }
  }
  return { node, update };
}

/** While too few answers are evaluated, the outlook says how many are missing. */
function outlookOf(breaker) {
  const judged = breaker.samples < breaker.min_samples ? "" : `${percent(breaker.pass_rate)} of ${count(breaker.samples)} in the window`;
  const fallback = breaker.fallback ? `fallback ${breaker.fallback}` : "no fallback";
  return [breaker.outlook, judged, fallback].filter(Boolean).join(SEPARATOR);
}

// The changes that an operator can make, and their effects in words.

import { confirm } from "./confirm.js";
import { number } from "./format.js";
import { shared } from "./state.js";

export const laneName = (lane) => lane.adapter || "bare model";
export const laneOf = (view, status) => view.lanes.find((lane) => lane.status === status) ?? null;

const OPEN_STATES = new Set(["shadow_only", "recovering"]);

export function serves(view) {
  return !isOpen(view.breaker) && view.replicas.some(({ info }) => info.status === "serving" && info.health_breaker !== "open");
}

function isOpen(breaker) {
  if (breaker === null) return false;
  return breaker.hold ? breaker.hold === "open" : OPEN_STATES.has(breaker.state);
}

const escape = encodeURIComponent;

export function holdBreaker(view, hold) {
  const { name, breaker } = view;
  confirm({
    title: `Hold the breaker of ${name} ${hold}?`,
    effect: hold === "open" ? effectOfOpen(name, breaker.fallback) : effectOfClosed(name),
    verb: `Hold ${hold}`,
    danger: true,
    path: `breakers/${escape(name)}/hold`,
    body: () => ({ hold }),
    done: `The breaker of ${name} is held ${hold}.`,
  });
}

function effectOfOpen(name, fallback) {
  return `${name} serves no callers until an operator releases the breaker. ${fallbackEffect(fallback)} A share of the requests still goes to it as shadows, so that it is still measured.`;
}

/** A fallback that does not serve is not replaced by its own fallback. */
function fallbackEffect(fallback) {
  const view = shared.overview.specialists.find((each) => each.name === fallback);
  if (view && serves(view)) return `The fallback ${fallback} answers instead.`;
  const why = fallback ? `the fallback ${fallback} does not serve either` : "no fallback is configured";
  return `No specialist replaces it (${why}): callers are refused unless their request has a second choice that serves.`;
}

function effectOfClosed(name) {
  return `${name} serves regardless of its pass rate until an operator releases the breaker. The breaker does not protect callers meanwhile.`;
}

export function releaseBreaker({ name }) {
  confirm({
    title: `Release the breaker of ${name}?`,
    effect: "The breaker decides again, from the state it would have without the hold.",
    verb: "Release",
    path: `breakers/${escape(name)}/release`,
    body: () => ({}),
    done: `The breaker of ${name} is released.`,
  });
}

const KNOB_EFFECTS = {
  shadow_threshold: "Decisions with less confidence than this get a shadow request, or go to the second choice more often.",
  priority_floor: "Requests of lower priority than this are refused, unless their second choice has a lower floor and room.",
};

export function setKnob(knob) {
  const kind = knob.name.slice(knob.name.lastIndexOf(".") + 1);
  confirm({
    title: `Set ${knob.name}?`,
    effect: `${KNOB_EFFECTS[kind] ?? ""} It is ${number(knob.value)} now and ${number(knob.configured)} in the configuration. Your value stays until an operator releases the knob, whatever escalation requests.`.trim(),
    verb: "Set",
    danger: kind === "priority_floor",
    path: "knobs/set",
    body: (value) => ({ name: knob.name, value: Number(value) }),
    done: `${knob.name} is set.`,
    field: { name: "Value", value: String(knob.value), validate: checkNumber },
  });
}

/** The router checks the range. */
function checkNumber(text) {
  return text === "" || !Number.isFinite(Number(text)) ? "The value must be a number with a decimal point." : null;
}

export function releaseKnob(knob) {
  confirm({
    title: `Release ${knob.name}?`,
    effect: `It returns to the configured value, ${number(knob.configured)}, adjusted by escalation.`,
    verb: "Release",
    path: "knobs/release",
    body: () => ({ name: knob.name }),
    done: `${knob.name} is released.`,
  });
}

export function promoteLane(view) {
  const candidate = laneOf(view, "candidate");
  const serving = laneOf(view, "serving");
  confirm({
    title: `Promote ${laneName(candidate)} of ${view.name}?`,
    effect: `${laneName(candidate)} serves instead of ${serving ? laneName(serving) : "the current lane"}, which is kept. Running requests finish on their lane. The new lane counts as fresh until it has a history.`,
    verb: "Promote",
    danger: true,
    path: `lanes/${escape(view.name)}/promote`,
    body: () => ({ name: candidate.adapter }),
    done: `${laneName(candidate)} now serves ${view.name}.`,
  });
}

export function rollBackLane(view) {
  const candidate = laneOf(view, "candidate");
  const previous = laneOf(view, "previous");
  confirm({
    title: candidate ? `Drop the candidate of ${view.name}?` : `Roll ${view.name} back?`,
    effect: candidate
      ? `${laneName(candidate)} is removed and gets no more shadow requests. The serving lane stays.`
      : `${laneName(previous)} serves again. Running requests finish on their lane.`,
    verb: candidate ? "Drop" : "Roll back",
    danger: true,
    path: `lanes/${escape(view.name)}/roll_back`,
    body: () => ({}),
    done: candidate ? `The candidate of ${view.name} is removed.` : `${laneName(previous)} serves ${view.name} again.`,
  });
}

export function drainReplica({ info }) {
  confirm({
    title: `Drain replica ${info.name}?`,
    effect: `No router sends it new requests; it finishes its running requests. ${otherReplicas(info)} It stays drained until an operator undrains it.`,
    verb: "Drain",
    danger: true,
    path: `replicas/${escape(info.name)}/drain`,
    body: () => ({}),
    done: `${info.name} gets no new requests.`,
  });
}

function otherReplicas(info) {
  const view = shared.overview.specialists.find((each) => each.name === info.specialist);
  const others = view.replicas.filter((each) => each.info.name !== info.name && each.info.status === "serving").length;
  if (others === 0) return `It is the last serving replica of ${info.specialist}: second choices answer, and requests without one are refused.`;
  return `${others === 1 ? "One other replica" : `${others} other replicas`} of ${info.specialist} serve${others === 1 ? "s" : ""}.`;
}

export function undrainReplica({ info }) {
  confirm({
    title: `Undrain replica ${info.name}?`,
    effect: "Routers send it requests again.",
    verb: "Undrain",
    path: `replicas/${escape(info.name)}/undrain`,
    body: () => ({}),
    done: `${info.name} gets requests again.`,
  });
}

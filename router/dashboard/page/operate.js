// What an operator may change, and what each change means, in words.

import { confirm } from "./confirm.js";
import { shared } from "./context.js";
import { number } from "./format.js";
import { laneName, laneOf } from "./lanes.js";
import { serves } from "./serving.js";

const part = encodeURIComponent;

export function holdBreaker(view, hold) {
  const { name, breaker } = view;
  confirm({
    title: `Hold the breaker of ${name} ${hold}?`,
    effect: hold === "open" ? opened(name, breaker.fallback) : closed(name),
    verb: `Hold ${hold}`,
    danger: true,
    path: `breakers/${part(name)}/hold`,
    body: () => ({ hold }),
    done: `The breaker of ${name} is held ${hold}.`,
  });
}

function opened(name, fallback) {
  return `${name} answers nobody until somebody releases it. ${instead(fallback)} A share of the requests still goes to it as shadows, so that it goes on being measured.`;
}

/** A fallback that does not serve stands in for nobody, and its own fallback is not asked. */
function instead(fallback) {
  const view = shared.overview.specialists.find((each) => each.name === fallback);
  if (view && serves(view)) return `${fallback} answers in its place.`;
  const why = fallback ? `its fallback ${fallback} does not serve either` : "no fallback is configured";
  return `Nobody stands in for it (${why}): callers are refused, unless their request has a second choice that serves.`;
}

function closed(name) {
  return `${name} answers, whatever its answers are like, until somebody releases it. Its breaker does not protect callers meanwhile.`;
}

export function releaseBreaker({ name }) {
  confirm({
    title: `Release the breaker of ${name}?`,
    effect: "The breaker decides again by itself, from where it would be without the hold.",
    verb: "Release",
    path: `breakers/${part(name)}/release`,
    body: () => ({}),
    done: `The breaker of ${name} is released.`,
  });
}

const MEANS = {
  shadow_threshold: "Decisions with less confidence than this get a second opinion: more shadows, or more work for second choices.",
  priority_floor: "Requests of lower priority than this are refused.",
};

export function setKnob(knob) {
  const kind = knob.name.slice(knob.name.lastIndexOf(".") + 1);
  confirm({
    title: `Set ${knob.name}?`,
    effect: `${MEANS[kind] ?? ""} It is ${number(knob.value)} now; the configuration says ${number(knob.configured)}. What you set stands until somebody releases it, whatever escalation asks for.`.trim(),
    verb: "Set",
    danger: kind === "priority_floor",
    path: "knobs/set",
    body: (value) => ({ name: knob.name, value: Number(value) }),
    done: `${knob.name} is set.`,
    field: { name: "Value", value: String(knob.value), mistake: noNumber },
  });
}

/** Which numbers are allowed, the router says. */
function noNumber(text) {
  return text === "" || !Number.isFinite(Number(text)) ? "The value must be a number, with a point for its decimals." : null;
}

export function releaseKnob(knob) {
  confirm({
    title: `Release ${knob.name}?`,
    effect: `It goes back to what the configuration says, ${number(knob.configured)}, and to what escalation makes of it.`,
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
    effect: `${laneName(candidate)} answers from now on instead of ${serving ? laneName(serving) : "what serves now"}, which is kept. Requests under way finish where they began. It counts as fresh until it has history.`,
    verb: "Promote",
    danger: true,
    path: `lanes/${part(view.name)}/promote`,
    body: () => ({ name: candidate.adapter }),
    done: `${laneName(candidate)} serves for ${view.name}.`,
  });
}

export function rollBackLane(view) {
  const candidate = laneOf(view, "candidate");
  const previous = laneOf(view, "previous");
  confirm({
    title: candidate ? `Drop the candidate of ${view.name}?` : `Roll ${view.name} back?`,
    effect: candidate
      ? `${laneName(candidate)} is gone: it shadows no more. What serves now goes on serving.`
      : `${laneName(previous)} serves again from now on. Requests under way finish where they began.`,
    verb: candidate ? "Drop" : "Roll back",
    danger: true,
    path: `lanes/${part(view.name)}/roll_back`,
    body: () => ({}),
    done: candidate ? `The candidate of ${view.name} is gone.` : `${laneName(previous)} serves for ${view.name} again.`,
  });
}

export function drainReplica({ info }) {
  confirm({
    title: `Drain replica ${info.name}?`,
    effect: `No router sends it anything new; what it has, it finishes. ${left(info)} It stays out until somebody undrains it.`,
    verb: "Drain",
    danger: true,
    path: `replicas/${part(info.name)}/drain`,
    body: () => ({}),
    done: `${info.name} gets nothing new.`,
  });
}

/** Who is there besides. */
function left(info) {
  const view = shared.overview.specialists.find((each) => each.name === info.specialist);
  const others = view.replicas.filter((each) => each.info.name !== info.name && each.info.status === "serving").length;
  if (others === 0) return `It is the last of ${info.specialist} that serves: second choices answer then, and callers without one are refused.`;
  return `${others === 1 ? "One other replica" : `${others} other replicas`} of ${info.specialist} serve${others === 1 ? "s" : ""}.`;
}

export function undrainReplica({ info }) {
  confirm({
    title: `Undrain replica ${info.name}?`,
    effect: "Routers send it requests again.",
    verb: "Undrain",
    path: `replicas/${part(info.name)}/undrain`,
    body: () => ({}),
    done: `${info.name} gets requests again.`,
  });
}

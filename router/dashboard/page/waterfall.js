// Where the time of one request went: the router's stages, and within them the replica's.

import { make } from "./dom.js";
import { seconds } from "./format.js";

/** Stages: {name, from, to, kind}, in seconds since the request came; those it never reached are left out. */
export function stages({ timings, usage, attempts }) {
  const { decided, dispatched, accepted, first_chunk: first, total } = timings;
  const found = [{ name: "Decide", from: 0, to: decided ?? total }];
  if (decided !== null && dispatched !== null) found.push({ name: "To a replica", from: decided, to: dispatched });
  if (dispatched !== null) found.push({ name: "Replica's door", from: dispatched, to: accepted ?? total });
  found.push(...failedAttempts(attempts, dispatched));
  if (accepted !== null) found.push({ name: "To first token", from: accepted, to: first ?? total });
  if (accepted !== null && usage) found.push(...within(usage.timings, accepted));
  if (first !== null) found.push({ name: "Answer", from: first, to: total });
  return found.filter((each) => each.to >= each.from);
}

/** As the replica measured it, from its acceptance on. */
function within({ queued, prefill }, accepted) {
  const found = [];
  if (queued !== null) found.push({ name: "queue", from: accepted, to: accepted + queued, kind: "inner" });
  if (queued !== null && prefill !== null) {
    found.push({ name: "prefill", from: accepted + queued, to: accepted + queued + prefill, kind: "inner" });
  }
  return found;
}

/** One after the other; the last of them is the one that the stages tell of. */
function failedAttempts(attempts, dispatched) {
  const found = [];
  let from = dispatched ?? 0;
  for (const each of attempts) {
    if (each.reason) found.push({ name: each.replica || each.specialist, from, to: from + each.seconds, kind: "wrong" });
    from += each.seconds;
  }
  return found;
}

export function waterfall(receipt) {
  const found = stages(receipt);
  const end = Math.max(receipt.timings.total, ...found.map((each) => each.to)) || 1;
  const rows = found.flatMap(({ name, from, to, kind }) => {
    const bar = make("span", { class: `span ${kind ?? ""}`.trim() });
    bar.style.left = `${(100 * from) / end}%`;
    bar.style.width = `${(100 * (to - from)) / end}%`;
    const title = kind === "wrong" ? `${name}, failed` : name;
    return [
      make("span", { class: kind ? "sub" : "" }, title),
      make("span", { class: "track", "aria-hidden": "true" }, bar),
      make("span", { class: "long" }, seconds(to - from)),
    ];
  });
  const whole = [make("strong", {}, "Total"), make("span"), make("strong", { class: "long" }, seconds(receipt.timings.total))];
  return make("div", { class: "fall" }, ...rows, ...whole);
}

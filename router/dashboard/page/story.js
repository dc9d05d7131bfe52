// The whole path of one request.

import { get } from "./api.js";
import { fresh } from "./context.js";
import { byId, make, setText } from "./dom.js";
import { number, percent, seconds, when, words } from "./format.js";
import { outcomeOf } from "./receipt_line.js";
import { facts, list, part, plainTable } from "./story_parts.js";
import { waterfall } from "./waterfall.js";

const dialog = byId("story");
const body = byId("story-body");
let turn = 0;

export function startStory() {
  byId("story-close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
}

export async function openStory(id, tenant) {
  const mine = ++turn;
  setText(byId("story-title"), `Request ${id}`);
  body.replaceChildren(make("p", { class: "muted" }, "Looking…"));
  if (!dialog.open) dialog.showModal();
  const query = new URLSearchParams({ request_id: id, ...(tenant ? { tenant } : {}) });
  try {
    const story = await get(`story?${query}`);
    if (mine === turn) body.replaceChildren(...told(story));
  } catch (refused) {
    if (mine === turn) body.replaceChildren(make("p", { class: "error", role: "alert" }, refused.message));
  }
  dialog.scrollTop = 0;
  body.focus({ preventScroll: true });
}

function told({ receipt, comparison, judged, changes }) {
  return [
    make("p", { class: "story-lead" }, lead(receipt)),
    errorPart(receipt.error),
    part("Where the time went", waterfall(receipt)),
    decisionPart(receipt.decision),
    betweenPart(receipt.between),
    attemptsPart(receipt.attempts),
    admissionPart(receipt.admission),
    usagePart(receipt.usage),
    shadowPart(receipt.between?.shadow ?? null, comparison),
    verdictPart(receipt.validation, judged),
    changesPart(changes ?? []),
    identityPart(receipt),
  ].filter(Boolean);
}

function lead(receipt) {
  const { decision, error, specialist, replica, timings } = receipt;
  const outcome = outcomeOf(error, timings.first_chunk !== null);
  const by = specialist || decision.primary || "nobody";
  const at = `at ${when(receipt.created_unix_ms, fresh.nowMs)}`;
  if (outcome === "answered") return `Answered by ${by} (${replica}) in ${seconds(timings.total)}, ${at}.`;
  return `${outcome.charAt(0).toUpperCase()}${outcome.slice(1)} after ${seconds(timings.total)}, ${at}; it was for ${by}.`;
}

function errorPart(error) {
  if (!error) return null;
  const after = error.retry_after === null ? "" : seconds(error.retry_after);
  const named = error.field ? `${error.field}${error.limit ? ` must be ${error.limit}` : ""}` : "";
  return part("What went wrong", facts([["Reason", words(error.reason)], ["Message", error.message], ["Field", named], ["Retry after", after]]));
}

function decisionPart(decision) {
  const scores = decision.distribution.map((each) => [each.specialist, each.probability]);
  return part(
    "Decision",
    facts([
      ["Primary", decision.primary || "nobody"],
      ["Why", decision.why],
      ["Decided by", [decision.source, decision.decided_by].filter(Boolean).join(" ")],
      ["Second choice", decision.second_choice],
      ["Confidence", decision.confidence === null ? "" : percent(decision.confidence)],
      ["Intent", decision.intent],
      ["Task", decision.task],
      ["Adapters", decision.adapters.join(", ")],
    ]),
    scores.length ? chances(scores) : null,
    decision.notes.length ? list(decision.notes) : null,
  );
}

function chances(scores) {
  const rows = scores.flatMap(([name, share]) => {
    const bar = make("span", { class: "span" });
    bar.style.display = "block";
    bar.style.width = `${100 * share}%`;
    return [make("span", {}, name), make("span", { class: "track", "aria-hidden": "true" }, bar), make("span", {}, percent(share))];
  });
  return make("div", { class: "chances" }, ...rows);
}

function betweenPart(between) {
  if (!between) return null;
  return part(
    "Between decision and replica",
    facts([
      ["Breaker of the primary", words(between.correctness)],
      ["Answered instead of", between.instead_of],
      ["Why", between.why],
      ["Spilled", between.spilled ? "yes: the primary had no room" : ""],
      ["Lane", between.lane],
      ["Shadow threshold", number(between.shadow_threshold)],
      ["Priority floor", number(between.priority_floor)],
      ["Knobs last turned by", between.knobs_by],
    ]),
  );
}

function attemptsPart(attempts) {
  if (!attempts.length) return null;
  const rows = attempts.map((each) => [each.specialist, each.replica, each.reason ? words(each.reason) : "answered", seconds(each.seconds), each.message]);
  return part("Attempts", plainTable("Attempts", ["Specialist", "Replica", "What came of it", "Took", "It said"], rows));
}

function admissionPart(admission) {
  if (!admission) return null;
  const forecast = admission.forecast;
  return part(
    "Admission",
    facts([
      ["Prompt", `${number(admission.prompt_tokens)} tokens`],
      ["In line before it", number(admission.queue_position)],
      ["Answer at most", `${number(admission.max_tokens)} tokens`],
      ["Expected wait", forecast ? seconds(forecast.wait) : "nothing had been measured"],
      ["Expected total", forecast ? seconds(forecast.total) : ""],
      ["Left before the deadline", forecast && forecast.slack !== null ? seconds(forecast.slack) : ""],
      ["Shed for it", forecast?.displaced ? number(forecast.displaced) : ""],
      ["Set aside for it", forecast?.set_aside ? number(forecast.set_aside) : ""],
    ]),
  );
}

function usagePart(usage) {
  if (!usage) return null;
  const { decode } = usage.timings;
  const speed = usage.completion_tokens > 1 && decode ? `${number((usage.completion_tokens - 1) / decode)} tokens/s` : "";
  return part(
    "Answer",
    facts([
      ["Ended by", words(usage.finish_reason)],
      ["Tokens", number(usage.completion_tokens)],
      ["Speed", speed],
      ["From the cache", `${number(usage.cache_hit_tokens)} of ${number(usage.prompt_tokens)} prompt tokens`],
      ["Why not more", words(usage.miss_reason)],
      ["Gave way", usage.times_preempted ? `${number(usage.times_preempted)} times` : ""],
    ]),
  );
}

function shadowPart(shadow, comparison) {
  if (!shadow) return null;
  const name = [shadow.specialist, ...shadow.adapters].join("+");
  const seen = comparison
    ? [
        ["Answer", words(comparison.primary_outcome)],
        ["Shadow", words(comparison.shadow_outcome)],
        ["Similarity", percent(comparison.similarity)],
        ["Agreed", comparison.agreed ? "yes" : "no"],
      ]
    : [["Comparison", "not known, or not yet"]];
  return part("Shadow", facts([["Sent to", name], ["Because of", words(shadow.why)], ...seen]));
}

function verdictPart(validation, judged) {
  if (!validation && !judged) return null;
  return part(
    "Verdict",
    facts([
      ["Afterwards", judged],
      ["Verifier", validation?.verifier ?? ""],
      ["Outcome", validation?.outcome ?? ""],
      ["Detail", validation?.detail ?? ""],
      ["Took", validation ? seconds(validation.seconds) : ""],
    ]),
  );
}

function changesPart(changes) {
  if (!changes.length) return null;
  const rows = changes.map((each) => [when(each.at_unix_ms, fresh.nowMs), each.who, words(each.what), each.subject, each.after, each.why]);
  return part("Changed in the hour before", plainTable("Changes", ["Time", "Who", "What", "Of", "After", "Why"], rows));
}

function identityPart(receipt) {
  return part(
    "Identity",
    facts([
      ["Trace", receipt.trace_id],
      ["Caller", [receipt.caller, receipt.tenant].filter(Boolean).join(" of ")],
      ["Priority", number(receipt.priority)],
      ["Session", receipt.session_id],
      ["Replica", receipt.replica],
      ["Model revision", receipt.lane.revision],
      ["Adapters", receipt.lane.adapter_digests.join(", ")],
      ["Configuration", receipt.decision.config_digest],
    ]),
  );
}

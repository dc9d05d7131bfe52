// The timeline of one request.

import { get } from "./api.js";
import { byId, make, setText } from "./dom.js";
import { number, percent, seconds, when, words } from "./format.js";
import { outcomeOf } from "./receipt_line.js";
import { fresh } from "./state.js";

export function part(title, ...nodes) {
  return make("section", { class: "story-part" }, make("h3", {}, title), ...nodes.filter(Boolean));
}

/** Pairs of a name and a text. Pairs without a text are left out. */
export function facts(pairs) {
  const known = pairs.filter(([, text]) => text !== "" && text !== null && text !== undefined);
  return make("dl", { class: "facts" }, ...known.flatMap(([name, text]) => [make("dt", {}, name), make("dd", {}, String(text))]));
}

export function list(texts) {
  return make("ul", {}, ...texts.map((text) => make("li", {}, text)));
}

export function plainTable(name, titles, rows) {
  const caption = make("caption", { class: "unseen" }, name);
  const head = make("tr", {}, ...titles.map((title) => make("th", { scope: "col" }, title)));
  const lines = rows.map((row) => make("tr", {}, ...row.map((text, index) => make("td", { "data-of": titles[index] }, text))));
  return make("table", { class: "table cards" }, caption, make("thead", {}, head), make("tbody", {}, ...lines));
}

/** Milliseconds with one decimal: the router sends whole tenths, so the parts that are shown add up to what is shown for their stage. */
const length = ({ start, end }) => milliseconds.format((Math.round(end * 1e4) - Math.round(start * 1e4)) / 10);
const milliseconds = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });

/** The stages of the request and their parts; time without a measurement is the part "other". */
export function waterfall(whole) {
  const rows = whole.parts.flatMap((stage) => [...stageRow(stage, whole, ""), ...stage.parts.flatMap((each) => stageRow(each, whole, "sub"))]);
  return make("div", { class: "fall" }, ...rows, ...stageRow(whole, whole, "sum"));
}

function stageRow(stage, whole, depth) {
  const kind = stage.has_failed ? "wrong" : stage.name === "other" ? "other" : depth && "inner";
  const bar = make("span", { class: `span ${kind}`.trim() });
  bar.style.left = `${(100 * stage.start) / (whole.end || 1)}%`;
  bar.style.width = `${(100 * (stage.end - stage.start)) / (whole.end || 1)}%`;
  const name = depth === "sub" ? stage.name : stage.name.charAt(0).toUpperCase() + stage.name.slice(1);
  return [
    make("span", { class: `stage ${depth}`.trim() }, stage.has_failed ? `${name}, failed` : name),
    depth === "sum" ? make("span", { class: "sum" }, "\u00a0") : make("span", { class: "track", "aria-hidden": "true" }, bar),
    make("span", { class: `long ${depth}`.trim() }, `${length(stage)}\u00a0ms`),
  ];
}

const JUDGES = {
  verifier: "verifier",
  cut: "verifier, on the part before the cut",
  degenerate: "check for degenerate text",
};
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
  body.replaceChildren(make("p", { class: "muted" }, "Loading…"));
  if (!dialog.open) dialog.showModal();
  const query = new URLSearchParams({ request_id: id, ...(tenant ? { tenant } : {}) });
  try {
    const story = await get(`story?${query}`);
    if (mine === turn) body.replaceChildren(...storyParts(story));
  } catch (error) {
    if (mine === turn) body.replaceChildren(make("p", { class: "error", role: "alert" }, error.message));
  }
  dialog.scrollTop = 0;
  body.focus({ preventScroll: true });
}

function storyParts({ receipt, comparison, judged, judged_kind: kind, judged_why: why, changes, stages }) {
  return [
    make("p", { class: "story-lead" }, lead(receipt)),
    errorPart(receipt.error),
    part("Where the time went", waterfall(stages)),
    decisionPart(receipt.decision),
    betweenPart(receipt.between),
    attemptsPart(receipt.attempts),
    admissionPart(receipt.admission),
    usagePart(receipt.usage),
    shadowPart(receipt.between?.shadow ?? null, comparison),
    verdictPart(receipt.validation, judged, kind, why),
    changesPart(changes ?? []),
    identityPart(receipt),
  ].filter(Boolean);
}

function lead(receipt) {
  const { decision, error, specialist, replica, timings } = receipt;
  const outcome = outcomeOf(error, timings.first_chunk !== null);
  const by = specialist || decision.primary || "no specialist";
  const at = `at ${when(receipt.created_unix_ms, fresh.nowMs)}`;
  if (outcome === "answered") return `Answered by ${by} (${replica}) in ${seconds(timings.total)}, ${at}.`;
  return `${outcome.charAt(0).toUpperCase()}${outcome.slice(1)} after ${seconds(timings.total)}, ${at}; routed to ${by}.`;
}

function errorPart(error) {
  if (!error) return null;
  const after = error.retry_after === null ? "" : seconds(error.retry_after);
  const named = error.field ? `${error.field}${error.limit ? ` must be ${error.limit}` : ""}` : "";
  return part("Error", facts([["Reason", words(error.reason)], ["Message", error.message], ["Field", named], ["Retry after", after]]));
}

function decisionPart(decision) {
  const scores = decision.distribution.map((each) => [each.specialist, each.probability]);
  return part(
    "Decision",
    facts([
      ["Primary", decision.primary || "no specialist"],
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
    "Dispatch",
    facts([
      ["Breaker of the primary", words(between.correctness)],
      ["Instead of", between.instead_of],
      ["Why", between.why],
      ["Spilled", between.spilled ? "yes: the primary had no capacity" : ""],
      ["Lane", between.lane],
      ["Shadow threshold", number(between.shadow_threshold)],
      ["Priority floor", number(between.priority_floor)],
      ["Knobs last set by", between.knobs_by],
    ]),
  );
}

function attemptsPart(attempts) {
  if (!attempts.length) return null;
  const rows = attempts.map((each) => [each.specialist, each.replica, each.reason ? words(each.reason) : "answered", seconds(each.seconds), each.message]);
  return part("Attempts", plainTable("Attempts", ["Specialist", "Replica", "Result", "Duration", "Message"], rows));
}

function admissionPart(admission) {
  if (!admission) return null;
  const forecast = admission.forecast;
  return part(
    "Admission",
    facts([
      ["Prompt", `${number(admission.prompt_tokens)} tokens`],
      ["Queue position", number(admission.queue_position)],
      ["Answer limit", `${number(admission.max_tokens)} tokens`],
      ["Expected wait", forecast ? seconds(forecast.wait) : "not measured yet"],
      ["Expected first token", forecast?.first ? seconds(forecast.first) : ""],
      ["Expected total", forecast ? seconds(forecast.total) : ""],
      ["Slack before the deadline", forecast && forecast.slack !== null ? seconds(forecast.slack) : ""],
      ["Requests shed for this one", forecast?.displaced ? number(forecast.displaced) : ""],
      ["Requests suspended for this one", forecast?.set_aside ? number(forecast.set_aside) : ""],
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
      ["Finish reason", words(usage.finish_reason)],
      ["Tokens", number(usage.completion_tokens)],
      ["Speed", speed],
      ["From the cache", `${number(usage.cache_hit_tokens)} of ${number(usage.prompt_tokens)} prompt tokens`],
      ["Cache miss reason", words(usage.miss_reason)],
      ["Preempted", usage.times_preempted ? `${number(usage.times_preempted)} times` : ""],
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
    : [["Comparison", "not available yet"]];
  const end = [shadow.outcome || "planned", shadow.reason].filter(Boolean).map(words).join(": ");
  const to = shadow.replica ? ["Sent to", `${name} on ${shadow.replica}`] : ["Planned for", name || "not chosen"];
  return part("Shadow", facts([to, ["Reason", words(shadow.why)], ["Outcome", end], ...(shadow.replica ? seen : [])]));
}

function verdictPart(validation, judged, kind, why) {
  if (!validation && !judged) return null;
  return part(
    "Verdict",
    facts([
      ["Evaluation", judged],
      ["Judged by", judged ? (JUDGES[kind] ?? "") : ""],
      ["Reason", judged ? (why ?? "") : ""],
      ["Verifier", validation?.verifier ?? ""],
      ["Outcome", validation?.outcome ?? ""],
      ["Detail", validation?.detail ?? ""],
      ["Duration", validation ? seconds(validation.seconds) : ""],
    ]),
  );
}

function changesPart(changes) {
  if (!changes.length) return null;
  const rows = changes.map((each) => [when(each.at_unix_ms, fresh.nowMs), each.who, words(each.what), each.subject, each.after, each.why]);
  return part("Changes in the preceding hour", plainTable("Changes", ["Time", "Author", "Change", "Subject", "After", "Reason"], rows));
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

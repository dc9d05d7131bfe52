// The line of a receipt in the table of requests. Tests compare it with receipt_to_line in router/observe/overview/traffic.py.

export function lineOf(receipt) {
  const { between, usage, timings, error, decision, attempts } = receipt;
  const first = between?.spilled || !attempts.length ? decision.primary : attempts[0].specialist;
  return {
    request_id: receipt.request_id,
    tenant: receipt.tenant,
    at_unix_ms: receipt.created_unix_ms,
    specialist: receipt.specialist || first,
    primary: decision.primary,
    replica: receipt.replica,
    intent: decision.intent,
    outcome: outcomeOf(error, timings.first_chunk !== null),
    reason: error?.reason || "unspecified",
    ttft: timings.first_chunk,
    total: timings.total,
    completion_tokens: usage?.completion_tokens ?? 0,
    cache_hit_tokens: usage?.cache_hit_tokens ?? 0,
    prompt_tokens: usage?.prompt_tokens ?? receipt.admission?.prompt_tokens ?? 0,
    times_preempted: usage?.times_preempted ?? 0,
    spilled: between?.spilled ?? false,
    instead_of: between?.instead_of ?? "",
    shadow: between?.shadow?.replica ? between.shadow.specialist : "",
    attempts: attempts.length,
    confidence: decision.confidence,
  };
}

const CALLER_REASONS = new Set(["cancelled", "caller_stalled"]);
const FAILURE_REASONS = new Set(["", "deadline", "engine_failed", "replica_failed", "replica_lost", "no_replica", "internal", "store_unavailable"]);

/** Must match octet/telemetry/outcomes.py. */
export function outcomeOf(error, begun) {
  if (!error) return "answered";
  if (CALLER_REASONS.has(error.reason)) return "cancelled";
  return begun || FAILURE_REASONS.has(error.reason) ? "failed" : "refused";
}

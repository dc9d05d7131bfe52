/** Receipts: the complete record of one request. Times are seconds. */

export interface Score {
  specialist: string;
  probability: number;
}

export interface Decision {
  /** forced, intent, rule, classifier, default or bare; empty if no specialist should answer. */
  source: string;
  /** The name of the rule or intent, or the classifier's digest. */
  decided_by: string;
  why: string;
  /** Empty if no specialist should answer. */
  primary: string;
  second_choice: string;
  /** Most likely first, including "reject"; empty if the classifier did not run. */
  distribution: Score[];
  confidence: number | null;
  intent: string;
  task: string;
  adapters: string[];
  /** Only the parameters that are set. */
  sampling: Record<string, unknown>;
  max_tokens: number;
  /** What set max_tokens: caller, task or specialist. */
  max_tokens_from: string;
  notes: string[];
  request_digest: string;
  config_digest: string;
  classifier_digest: string;
}

/** What computed the answer, as hex sha256 digests of the content. */
export interface Lane {
  specialist: string;
  revision: string;
  adapter_digests: string[];
}

/** One attempt to have a replica answer the request. */
export interface Attempt {
  specialist: string;
  replica: string;
  /** Empty if the replica answered. */
  reason: string;
  message: string;
  seconds: number;
  /** Seconds since the request arrived at the router. */
  began: number;
  /** W3C span id that was sent to the replica; empty if the request is not traced. */
  span_id: string;
}

/** The replica's forecast when it admitted the request. */
export interface Forecast {
  wait: number;
  /** Null in receipts of earlier versions. */
  first: number | null;
  total: number;
  /** Time left before the deadline. */
  slack: number | null;
  /** Number of lower-priority requests that were shed for this one. */
  displaced: number;
  /** Number of lower-priority requests that were suspended for this one. */
  set_aside: number;
}

/** The replica's admission. */
export interface Admission {
  prompt_tokens: number;
  queue_position: number;
  max_tokens: number;
  seed: number;
  /** Whether the request took a place that a ticket had reserved. */
  reserved: boolean;
  /** Null if no rate had been measured. */
  forecast: Forecast | null;
}

/** A copy of the request whose answer no caller waits for. */
export interface Shadow {
  specialist: string;
  adapters: string[];
  why: string;
  /** What had become of it: sent (still running), answered, shed or failed; empty before the end of the request. */
  outcome: string;
  /** Why it was shed or failed. */
  reason: string;
  /** The replica to which it was sent; empty if it was not sent. */
  replica: string;
}

/** State of breakers, lanes, knobs and shadows when the request was dispatched. */
export interface Between {
  correctness: string;
  /** The specialist named by the decision, if another one was to answer. */
  instead_of: string;
  why: string;
  lane: string;
  shadow: Shadow | null;
  shadow_threshold: number;
  priority_floor: number;
  knobs_by: string;
  /** The second choice answered because the primary had no capacity. */
  spilled: boolean;
  /** The specialist to try first, if it is not the decision's primary. */
  lead: string;
}

/** Null for stages that the request did not reach. */
export interface ReplicaTimings {
  queued: number | null;
  prefill: number | null;
  decode: number | null;
  total: number;
  /** The part of prefill and decode during which the request was preempted. */
  preempted: number | null;
}

export interface ReceiptUsage {
  finish_reason: string;
  stop_string: string | null;
  prompt_tokens: number;
  completion_tokens: number;
  /** Prompt tokens found in the prefix cache. */
  cache_hit_tokens: number;
  /** Why the conversation's prefix was not reused; empty if everything reusable was. */
  miss_reason: string;
  times_preempted: number;
  /** Tokens that steps guessed ahead. */
  drafted_tokens: number;
  /** Those of them that were right. */
  accepted_tokens: number;
  timings: ReplicaTimings;
}

/** Since the request arrived at the router; null for stages that it did not reach. */
export interface Timings {
  decided: number | null;
  dispatched: number | null;
  accepted: number | null;
  first_chunk: number | null;
  /** The replica had sent its whole answer; a requested validation follows. */
  answered: number | null;
  /** Waited for a replica to come back. */
  waited: number | null;
  total: number;
}

/** The verifier's result for the answer. */
export interface Validation {
  verifier: string;
  /** passed, failed, or skipped if the verifier could not decide. */
  outcome: string;
  detail: string;
  seconds: number;
}

export interface ReceiptError {
  reason: string;
  field: string;
  limit: string;
  value: string;
  message: string;
  /** Seconds. */
  retry_after: number | null;
}

export interface Receipt {
  request_id: string;
  decision: Decision;
  /** The specialist that answered; empty if none did. */
  specialist: string;
  /** The specialist and its adapters, in the order applied; empty for a bare model. */
  experts_used: string[];
  replica: string;
  lane: Lane;
  attempts: Attempt[];
  /** Null if no replica has accepted the request. */
  admission: Admission | null;
  usage: ReceiptUsage | null;
  timings: Timings;
  error: ReceiptError | null;
  breaker: string;
  trace_id: string;
  /** W3C id of the router's span; empty if the request is not traced. */
  span_id: string;
  created_unix_ms: number;
  priority: number;
  session_id: string;
  /** Source of the session id: session_id, metadata, user, or none. */
  session_source: string;
  /** Null if the request was not dispatched. */
  between: Between | null;
  /** Null unless the request asked for validation. */
  validation: Validation | null;
  /** Name and tenant of the API key; both empty if the router requires no keys. */
  caller: string;
  tenant: string;
}

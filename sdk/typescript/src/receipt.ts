/** Everything about one request that somebody may want to know afterwards. Times are seconds. */

export interface Score {
  specialist: string;
  probability: number;
}

export interface Decision {
  /** forced, intent, rule, classifier or default; empty when nobody should answer. */
  source: string;
  /** The rule, the intent, or the classifier's digest. */
  decided_by: string;
  why: string;
  /** Empty when nobody should answer. */
  primary: string;
  second_choice: string;
  /** Most likely first, with "reject"; empty when the classifier was not asked. */
  distribution: Score[];
  confidence: number | null;
  intent: string;
  task: string;
  adapters: string[];
  /** Only what is set. */
  sampling: Record<string, unknown>;
  max_tokens: number;
  notes: string[];
  request_digest: string;
  config_digest: string;
  classifier_digest: string;
}

/** What computed: digests of content, sha256 in hex. */
export interface Lane {
  specialist: string;
  revision: string;
  adapter_digests: string[];
}

/** One replica was asked. */
export interface Attempt {
  specialist: string;
  replica: string;
  /** Empty: it answered. */
  reason: string;
  message: string;
  seconds: number;
  /** Since the request reached the router. */
  began: number;
  /** What the replica was told of the trace; empty where the request is not traced. */
  span_id: string;
}

/** What the replica expected when it accepted. */
export interface Forecast {
  wait: number;
  total: number;
  /** Left before the deadline. */
  slack: number | null;
  /** Requests of lower priority that were shed for it. */
  displaced: number;
  /** Requests of lower priority that have the time to wait for it. */
  set_aside: number;
}

/** What the replica's door said. */
export interface Admission {
  prompt_tokens: number;
  queue_position: number;
  max_tokens: number;
  seed: number;
  /** Null: nothing had been measured. */
  forecast: Forecast | null;
}

/** A copy that nobody waits for. */
export interface Shadow {
  specialist: string;
  adapters: string[];
  why: string;
}

/** What stood between the decision and the replica. */
export interface Between {
  correctness: string;
  /** The specialist that the decision named, where another was to answer in its place. */
  instead_of: string;
  why: string;
  lane: string;
  shadow: Shadow | null;
  shadow_threshold: number;
  priority_floor: number;
  knobs_by: string;
  /** The second choice answered, because the primary had no room. */
  spilled: boolean;
  /** Who was to be asked before anybody else, where it is not the decision's primary. */
  lead: string;
}

/** Null where the request never came that far. */
export interface ReplicaTimings {
  queued: number | null;
  prefill: number | null;
  decode: number | null;
  total: number;
  /** Of prefill and decode: from every time it gave way until it ran again. */
  preempted: number | null;
}

export interface ReceiptUsage {
  finish_reason: string;
  stop_string: string | null;
  prompt_tokens: number;
  completion_tokens: number;
  /** Prompt tokens that were reused. */
  cache_hit_tokens: number;
  /** Why the conversation's beginning was not; empty when everything was that could be. */
  miss_reason: string;
  times_preempted: number;
  timings: ReplicaTimings;
}

/** Since the request reached the router; null where it never came that far. */
export interface Timings {
  decided: number | null;
  dispatched: number | null;
  accepted: number | null;
  first_chunk: number | null;
  /** The whole answer was there: before a verdict that was waited for. */
  answered: number | null;
  total: number;
}

/** What the task's verifier made of the answer. */
export interface Validation {
  verifier: string;
  /** passed, failed, or skipped where nothing could be said. */
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
  /** Who answered. Empty: nobody has. */
  specialist: string;
  replica: string;
  lane: Lane;
  attempts: Attempt[];
  /** Null: no replica has accepted it. */
  admission: Admission | null;
  usage: ReceiptUsage | null;
  timings: Timings;
  error: ReceiptError | null;
  breaker: string;
  trace_id: string;
  /** The request's own span; empty where it is not traced. */
  span_id: string;
  created_unix_ms: number;
  priority: number;
  session_id: string;
  /** Where the conversation's key came from: session_id, metadata, user, or none. */
  session_source: string;
  /** Null: it never came that far. */
  between: Between | null;
  /** Null unless the request asked for it. */
  validation: Validation | null;
  /** The name of the key that was shown, and whose it is; both empty where none is asked for. */
  caller: string;
  tenant: string;
}

/** Whether to ask once more, and when: a client must never make a crowd larger. */

import { Busy, OctetError, ReplicaLost, Unavailable, invalid } from "./errors.js";

export interface RetryPolicy {
  /** Of one call. */
  readonly maxRetries: number;
  /** At most, before the first retry; twice as long before every other. Drawn between 0 and that. */
  readonly firstWaitMs: number;
  readonly longestWaitMs: number;
  /** A server that wants more patience than that gets none. */
  readonly longestRetryAfterMs: number;
}

export const RETRIES: RetryPolicy = {
  maxRetries: 2,
  firstWaitMs: 100,
  longestWaitMs: 5_000,
  longestRetryAfterMs: 60_000,
};

/** Of what the server asked for, on top of it: so that not everybody is back at the same moment. */
const JITTER = 0.1;
const CAPACITY = 10;
const EARNED = 0.1;
/** A priority that is too low stays too low, and a specialist that answers wrongly is not trusted again so soon. */
const STAYS_SO = new Set(["below_floor", "demoted"]);

/** Shared by all calls of a client: a retry costs 1, an answer brings back a part of it. */
export class RetryBudget {
  #left = CAPACITY;

  get left(): number {
    return this.#left;
  }

  /** Whether there was enough for one retry. */
  spend(): boolean {
    if (this.#left < 1) return false;
    this.#left -= 1;
    return true;
  }

  earn(): void {
    this.#left = Math.min(CAPACITY, this.#left + EARNED);
  }
}

/** One call with all of its attempts, before anything of an answer has come. */
export class Effort {
  #retries = 0;

  constructor(
    private readonly policy: RetryPolicy,
    private readonly budget: RetryBudget,
    private readonly leftMs: () => number,
    private readonly random: () => number = Math.random,
  ) {}

  /** Milliseconds until the next attempt, which is paid for; null to give up. `repeatable`: twice harms nobody;
   * `until`, by Date.now(): when nobody wants an answer to begin any more. */
  waitAfter(error: unknown, repeatable: boolean, until = Infinity): number | null {
    if (!(error instanceof OctetError) || !isWorthIt(error, repeatable)) return null;
    if (this.#retries >= this.policy.maxRetries) return null;
    const wait = waitMs(this.policy, this.#retries, error.retryAfterMs, this.random);
    const left = Math.min(this.leftMs(), until - Date.now());
    if ((error.retryAfterMs ?? 0) > this.policy.longestRetryAfterMs || wait >= left) return null;
    if (!this.budget.spend()) return null;
    this.#retries += 1;
    return wait;
  }

  answered(): void {
    this.budget.earn();
  }
}

/** Never sooner than the server said. */
export function waitMs(
  policy: RetryPolicy,
  retries: number,
  retryAfterMs: number | null,
  random: () => number,
): number {
  if (retryAfterMs !== null) return retryAfterMs * (1 + JITTER * random());
  return random() * Math.min(policy.longestWaitMs, policy.firstWaitMs * 2 ** retries);
}

/** A refusal came before the first token. What was cut off may have been generated: it is asked again only where that
 * harms nobody. */
export function isWorthIt(error: OctetError, repeatable: boolean): boolean {
  if (!error.worthRetrying || error.partial !== null || STAYS_SO.has(error.code)) return false;
  if (error.code === "deadline_unreachable" && error.retryAfterMs === null) return false;
  if (error instanceof Busy) return true;
  if (error instanceof Unavailable) return error.status !== null || error.unsent || repeatable;
  return error instanceof ReplicaLost && repeatable;
}

/** Throws InvalidRequest. */
export function policyOf(given: Partial<RetryPolicy> | undefined): RetryPolicy {
  const policy = { ...RETRIES, ...given };
  for (const [name, value] of Object.entries(policy)) {
    if (!(Number.isFinite(value) && value >= 0)) throw invalid(`retry.${name}`, "a number, at least 0", String(value));
  }
  return policy;
}

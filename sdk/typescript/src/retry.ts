/** Whether and when to retry, without adding load to an overloaded server. */

import type { Call } from "./transport.js";
import { Busy, OctetError, ReplicaLost, Unavailable, invalid } from "./errors.js";

export interface RetryPolicy {
  /** Per call. */
  readonly maxRetries: number;
  /** Upper bound of the random wait before the first retry; it doubles with every further retry. */
  readonly firstWaitMs: number;
  readonly longestWaitMs: number;
  /** If the server asks for a longer wait, the call fails instead. */
  readonly longestRetryAfterMs: number;
}

export const DEFAULT_RETRY_POLICY: RetryPolicy = {
  maxRetries: 2,
  firstWaitMs: 100,
  longestWaitMs: 5_000,
  longestRetryAfterMs: 60_000,
};

/** Share added at most to the server's retry-after, so that clients do not all return at the same moment. */
const JITTER = 0.1;
const BUDGET_CAPACITY = 10;
const BUDGET_PER_ANSWER = 0.1;
/** Refusals that a retry would not change soon: a priority below the floor, a demoted specialist. */
const PERMANENT_CODES = new Set(["below_floor", "demoted"]);

/** Shared by all calls of a client: a retry costs 1, an answer earns back a part of it. */
export class RetryBudget {
  #left = BUDGET_CAPACITY;

  get left(): number {
    return this.#left;
  }

  /** Returns false if the budget does not cover one more retry. */
  spend(): boolean {
    if (this.#left < 1) return false;
    this.#left -= 1;
    return true;
  }

  earn(): void {
    this.#left = Math.min(BUDGET_CAPACITY, this.#left + BUDGET_PER_ANSWER);
  }
}

/** The retries of one call, before any part of its answer has arrived. */
export class RetrySchedule {
  #retries = 0;
  #ticket: string | null;

  constructor(
    private readonly policy: RetryPolicy,
    private readonly budget: RetryBudget,
    private readonly leftMs: () => number,
    private readonly random: () => number = Math.random,
    ticket: string | undefined = undefined,
  ) {
    this.#ticket = ticket ?? null;
  }

  /** The call with the ticket of the last refusal. */
  withTicket(call: Call): Call {
    if (this.#ticket === null) return call;
    return { ...call, headers: { ...call.headers, "octet-ticket": this.#ticket } };
  }

  /** Milliseconds until the next attempt, which is charged to the budget unless the error has a ticket; null to give up.
   * `repeatable`: the request may safely run twice. `until`, by Date.now(): the time by which the answer must have begun. */
  waitAfter(error: unknown, repeatable: boolean, until = Infinity): number | null {
    if (!(error instanceof OctetError) || !isRetryable(error, repeatable)) return null;
    if (this.#retries >= this.policy.maxRetries) return null;
    const hasTicket = error.ticket !== null && error.retryAfterMs !== null;
    const wait = hasTicket
      ? (error.retryAfterMs ?? 0)
      : waitMs(this.policy, this.#retries, error.retryAfterMs, this.random);
    const left = Math.min(this.leftMs(), until - Date.now());
    if ((error.retryAfterMs ?? 0) > this.policy.longestRetryAfterMs || wait >= left) return null;
    if (!hasTicket && !this.budget.spend()) return null; // a kept place is no further load
    this.#retries += 1;
    if (error instanceof Busy) this.#ticket = error.ticket; // another failure leaves the place kept
    return wait;
  }

  recordAnswer(): void {
    this.budget.earn();
  }
}

/** Never less than the server's retry-after. */
export function waitMs(
  policy: RetryPolicy,
  retries: number,
  retryAfterMs: number | null,
  random: () => number,
): number {
  if (retryAfterMs !== null) return retryAfterMs * (1 + JITTER * random());
  return random() * Math.min(policy.longestWaitMs, policy.firstWaitMs * 2 ** retries);
}

/** A refused request has not run. A request that was cut off may have run, so it is repeated only if that is safe. */
export function isRetryable(error: OctetError, repeatable: boolean): boolean {
  if (!error.worthRetrying || error.partial !== null || PERMANENT_CODES.has(error.code)) return false;
  if (error.code === "deadline_unreachable" && error.retryAfterMs === null) return false;
  if (error instanceof Busy) return true;
  if (error instanceof Unavailable) return error.status !== null || error.unsent || repeatable;
  return error instanceof ReplicaLost && repeatable;
}

/** Throws InvalidRequest. */
export function resolvePolicy(given: Partial<RetryPolicy> | undefined): RetryPolicy {
  const policy = { ...DEFAULT_RETRY_POLICY, ...given };
  for (const [name, value] of Object.entries(policy)) {
    if (!(Number.isFinite(value) && value >= 0)) throw invalid(`retry.${name}`, "a number, at least 0", String(value));
  }
  return policy;
}

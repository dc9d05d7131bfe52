/** Calls with retries and a time limit, shared by all parts of a client. */

import { Deadline } from "./deadline.js";
import { invalid } from "./errors.js";
import { type RetryBudget, type RetryPolicy, RetrySchedule } from "./retry.js";
import { type Call, type Transport, readJson } from "./transport.js";

export interface CallOptions {
  /** Aborting it closes the connection, which cancels the request in the engine. */
  readonly signal?: AbortSignal;
  /** For the whole call, including retries and the whole answer; `waitMs` is added to it. */
  readonly timeoutMs?: number;
  /** How long a request may wait for capacity before its time limits begin to count; by default not at all. */
  readonly waitMs?: number;
  readonly maxRetries?: number;
  /** The `ticket` of the error that refused the same request before; retries send it by themselves. */
  readonly ticket?: string;
}

/** Applies if neither the call nor the client sets a timeout. */
const DEFAULT_TIMEOUT_MS = 600_000;
/** Extra time for the server to report a timeout itself, with the partial answer. */
export const GRACE_MS = 500;

export class Caller {
  constructor(
    readonly transport: Transport,
    readonly policy: RetryPolicy,
    private readonly budget: RetryBudget,
    private readonly timeoutMs: number | undefined,
  ) {}

  /** Throws InvalidRequest. */
  deadline(options: CallOptions, graceMs = 0): Deadline {
    const timeoutMs = this.configuredTimeout(options) ?? DEFAULT_TIMEOUT_MS;
    return new Deadline(timeoutMs + checkedWait(options), options.signal, graceMs);
  }

  /** The timeout of the call or else of the client; undefined if neither is set. */
  configuredTimeout(options: CallOptions): number | undefined {
    return options.timeoutMs ?? this.timeoutMs;
  }

  maxRetries(options: CallOptions): number {
    return options.maxRetries ?? this.policy.maxRetries;
  }

  retrySchedule(options: CallOptions, deadline: Deadline): RetrySchedule {
    const maxRetries = this.maxRetries(options);
    return new RetrySchedule({ ...this.policy, maxRetries }, this.budget, deadline.leftMs, Math.random, options.ticket);
  }

  /** For calls that may safely run twice. Throws OctetError. */
  async fetch<T>(call: Call, options: CallOptions): Promise<T> {
    return this.fetchWithRetries<T>(() => call, options, true);
  }

  /** `makeCall` receives the milliseconds that are left. Throws OctetError. */
  async fetchWithRetries<T>(makeCall: (leftMs: number) => Call, options: CallOptions, repeatable: boolean): Promise<T> {
    const deadline = this.deadline(options, repeatable ? 0 : GRACE_MS);
    const schedule = this.retrySchedule(options, deadline);
    try {
      for (;;) {
        const call = makeCall(deadline.leftMs());
        try {
          const response = await this.transport.send(schedule.withTicket(call), deadline);
          const content = await readJson<T>(response, deadline);
          schedule.recordAnswer();
          return content;
        } catch (error) {
          const wait = schedule.waitAfter(error, repeatable, call.until);
          if (wait === null) throw error;
          await deadline.sleep(wait);
        }
      }
    } finally {
      deadline.end();
    }
  }
}

/** Throws InvalidRequest. */
export function checkedWait({ waitMs = 0 }: CallOptions): number {
  if (!(Number.isFinite(waitMs) && waitMs >= 0)) throw invalid("waitMs", "a number, at least 0", String(waitMs));
  return waitMs;
}

const RANDOM_BYTES = 16;

/** An unguessable id. (`randomUUID` is not available on pages loaded without TLS.) */
export function randomId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(RANDOM_BYTES));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

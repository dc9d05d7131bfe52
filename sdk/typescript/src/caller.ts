/** Calls, with their retries and their time. */

import { Deadline } from "./deadline.js";
import { Effort, type RetryBudget, type RetryPolicy } from "./retry.js";
import { type Call, type Transport, jsonOf } from "./transport.js";

export interface CallOptions {
  /** Aborting it closes the connection, and that ends the engine's work. */
  readonly signal?: AbortSignal;
  /** For everything, retries and the whole answer included. */
  readonly timeoutMs?: number;
  readonly maxRetries?: number;
}

/** Where nobody says how long a call may take. Nothing is waited for without end. */
const LONGEST_CALL_MS = 600_000;
/** So long the server may take to tell, in its own words and with what was said, that the time is over. */
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
    return new Deadline(this.given(options) ?? LONGEST_CALL_MS, options.signal, graceMs);
  }

  /** What the caller said, here or when it made the client. */
  given(options: CallOptions): number | undefined {
    return options.timeoutMs ?? this.timeoutMs;
  }

  effort(options: CallOptions, deadline: Deadline): Effort {
    const maxRetries = options.maxRetries ?? this.policy.maxRetries;
    return new Effort({ ...this.policy, maxRetries }, this.budget, deadline.leftMs);
  }

  /** A call that may be made twice. Throws OctetError. */
  async fetch<T>(call: Call, options: CallOptions): Promise<T> {
    return this.persist<T>(() => call, options, true);
  }

  /** `make` gets the milliseconds that are left. Throws OctetError. */
  async persist<T>(make: (leftMs: number) => Call, options: CallOptions, repeatable: boolean): Promise<T> {
    const deadline = this.deadline(options, repeatable ? 0 : GRACE_MS);
    const effort = this.effort(options, deadline);
    try {
      for (;;) {
        const call = make(deadline.leftMs());
        try {
          const response = await this.transport.send(call, deadline);
          const whole = await jsonOf<T>(response, deadline);
          effort.answered();
          return whole;
        } catch (error) {
          const wait = effort.waitAfter(error, repeatable, call.until);
          if (wait === null) throw error;
          await deadline.sleep(wait);
        }
      }
    } finally {
      deadline.end();
    }
  }
}

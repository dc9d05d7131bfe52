/** The time limit of a call, combined with the caller's abort signal. */

import { Cancelled, DeadlineExceeded, type OctetError, invalid } from "./errors.js";

/** The longest delay that a timer supports. */
export const MAX_TIMER_MS = 2 ** 31 - 1;

export class Deadline {
  readonly #controller = new AbortController();
  readonly #until: number;
  readonly #timer: ReturnType<typeof setTimeout> | undefined;
  readonly #callerSignal: AbortSignal | undefined;
  #isLate = false;

  /** `timeoutMs`: null for no limit. `graceMs`: extra time in which the server may report the timeout itself.
   * Throws InvalidRequest. */
  constructor(
    private readonly timeoutMs: number | null,
    callerSignal?: AbortSignal,
    graceMs = 0,
  ) {
    if (timeoutMs !== null && !(timeoutMs > 0 && timeoutMs + graceMs <= MAX_TIMER_MS)) {
      throw invalid("timeoutMs", `more than 0 and at most ${MAX_TIMER_MS - graceMs}`, String(timeoutMs));
    }
    this.#until = timeoutMs === null ? Infinity : Date.now() + timeoutMs;
    this.#callerSignal = callerSignal;
    if (timeoutMs !== null) this.#timer = setTimeout(this.#expire, timeoutMs + graceMs);
    if (callerSignal?.aborted) this.cancel();
    else callerSignal?.addEventListener("abort", this.cancel);
  }

  /** Aborted when the time is over or the call is cancelled. */
  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  readonly leftMs = (): number => this.#until - Date.now();

  readonly cancel = (): void => this.#controller.abort();

  readonly #expire = (): void => {
    this.#isLate = true;
    this.#controller.abort();
  };

  /** Removes the timer and the listener, and aborts whatever is still running. */
  end(): void {
    clearTimeout(this.#timer);
    this.#callerSignal?.removeEventListener("abort", this.cancel);
    this.#controller.abort();
  }

  /** Why the signal is aborted. */
  error(partial: string | null = null): OctetError {
    if (this.#isLate) {
      const message = `no answer arrived within ${this.timeoutMs} ms`;
      return new DeadlineExceeded(message, { code: "deadline", partial });
    }
    const cause: unknown = this.#callerSignal?.aborted ? this.#callerSignal.reason : undefined;
    return new Cancelled("the call was cancelled", { code: "cancelled", partial, cause });
  }

  /** Throws Cancelled, DeadlineExceeded. */
  check(): void {
    if (this.signal.aborted) throw this.error();
  }

  /** Throws Cancelled, DeadlineExceeded. */
  async sleep(ms: number): Promise<void> {
    this.check();
    await new Promise<void>((resolve) => {
      const wake = (): void => {
        clearTimeout(timer);
        this.signal.removeEventListener("abort", wake);
        resolve();
      };
      const timer = setTimeout(wake, Math.min(ms, MAX_TIMER_MS));
      this.signal.addEventListener("abort", wake);
    });
    this.check();
  }
}

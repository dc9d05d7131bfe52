/** How long a call may take, and whoever may end it sooner. */

import { Cancelled, DeadlineExceeded, type OctetError, invalid } from "./errors.js";

/** As long as a timer can be. */
export const LONGEST_MS = 2 ** 31 - 1;

export class Deadline {
  readonly #controller = new AbortController();
  readonly #until: number;
  readonly #timer: ReturnType<typeof setTimeout> | undefined;
  readonly #given: AbortSignal | undefined;
  #isLate = false;

  /** Null: as long as it takes. `graceMs` is for the server's own words to arrive. Throws InvalidRequest. */
  constructor(
    private readonly timeoutMs: number | null,
    given?: AbortSignal,
    graceMs = 0,
  ) {
    if (timeoutMs !== null && !(timeoutMs > 0 && timeoutMs + graceMs <= LONGEST_MS)) {
      throw invalid("timeoutMs", `more than 0 and at most ${LONGEST_MS - graceMs}`, String(timeoutMs));
    }
    this.#until = timeoutMs === null ? Infinity : Date.now() + timeoutMs;
    this.#given = given;
    if (timeoutMs !== null) this.#timer = setTimeout(this.#late, timeoutMs + graceMs);
    if (given?.aborted) this.cancel();
    else given?.addEventListener("abort", this.cancel);
  }

  /** Aborted when the time is over, or the caller has enough. */
  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  readonly leftMs = (): number => this.#until - Date.now();

  readonly cancel = (): void => this.#controller.abort();

  readonly #late = (): void => {
    this.#isLate = true;
    this.#controller.abort();
  };

  /** Nothing of it is left behind; what still runs is aborted. */
  end(): void {
    clearTimeout(this.#timer);
    this.#given?.removeEventListener("abort", this.cancel);
    this.#controller.abort();
  }

  /** Why the signal is aborted. */
  error(partial: string | null = null): OctetError {
    if (this.#isLate) {
      const message = `no answer came within ${this.timeoutMs} ms`;
      return new DeadlineExceeded(message, { code: "deadline", partial });
    }
    const cause: unknown = this.#given?.aborted ? this.#given.reason : undefined;
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
      const timer = setTimeout(wake, Math.min(ms, LONGEST_MS));
      this.signal.addEventListener("abort", wake);
    });
    this.check();
  }
}

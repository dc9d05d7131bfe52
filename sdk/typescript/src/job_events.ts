/** Everything that happens to a job, each thing once, whatever happens to the connection. */

import { parsed } from "./answer_stream.js";
import type { Chunk } from "./answer.js";
import type { Caller } from "./caller.js";
import { Deadline, LONGEST_MS } from "./deadline.js";
import { Busy, OctetError, ProtocolError, ReplicaLost, Unavailable } from "./errors.js";
import { faultOfEvent } from "./fault.js";
import { type Job, type JobEvent, hasEnded } from "./job.js";
import { query } from "./path.js";
import { waitMs } from "./retry.js";
import type { ServerEvent } from "./sse.js";
import { eventsOf } from "./transport.js";

export interface Watching {
  readonly signal?: AbortSignal;
  /** For all of it; left out: as long as the job takes. */
  readonly timeoutMs?: number;
  /** Events up to this number are known already. */
  readonly after?: number;
  /** A connection that is silent for so long is taken for lost, and made anew. */
  readonly idleMs?: number;
  /** So often in a row, without any event in between. */
  readonly maxResumes?: number;
}

/** All events are known already: the job has ended. */
const ENDED = 204;
const IDLE_MS = 60_000;
/** With waits of up to five seconds: as long as a router takes to come back. */
const MAX_RESUMES = 20;

export class JobEvents implements AsyncIterable<JobEvent> {
  #last: number;
  #failures = 0;

  /** `path` is that of the events. */
  constructor(
    private readonly caller: Caller,
    private readonly path: string,
    private readonly watching: Watching,
  ) {
    this.#last = watching.after ?? 0;
  }

  /** Of the last event that came: where another may go on. */
  get last(): number {
    return this.#last;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<JobEvent, void, undefined> {
    const deadline = new Deadline(this.watching.timeoutMs ?? null, this.watching.signal);
    try {
      for (;;) {
        try {
          if (yield* this.#connection(deadline)) return;
        } catch (error) {
          await this.#resume(error, deadline);
        }
      }
    } finally {
      deadline.end();
    }
  }

  /** Until the job has ended: true. Throws OctetError. */
  async *#connection(whole: Deadline): AsyncGenerator<JobEvent, boolean, undefined> {
    const watch = new Watch(this.watching.idleMs ?? IDLE_MS, whole);
    try {
      const path = this.path + query({ after: this.#last === 0 ? undefined : this.#last });
      const response = await this.caller.transport.send({ method: "GET", path }, watch.deadline);
      if (response.status === ENDED) return true;
      for await (const told of eventsOf(response, watch.deadline, watch.heard)) {
        const event = this.#hear(told);
        if (event === null) continue;
        yield event;
        if (event.type === "status" && hasEnded(event.job)) return true;
      }
    } catch (error) {
      throw watch.isIdle ? lost(`nothing came for ${watch.idleMs} ms`) : error;
    } finally {
      watch.end();
    }
    throw lost("the events ended before the job did");
  }

  /** Throws the error where going on is of no use, and Cancelled, DeadlineExceeded. */
  async #resume(error: unknown, deadline: Deadline): Promise<void> {
    if (deadline.signal.aborted) throw deadline.error();
    const passes = error instanceof Busy || error instanceof Unavailable || error instanceof ReplicaLost;
    if (!passes || this.#failures >= (this.watching.maxResumes ?? MAX_RESUMES)) throw error;
    if ((error.retryAfterMs ?? 0) > this.caller.policy.longestRetryAfterMs) throw error;
    const wait = waitMs(this.caller.policy, this.#failures, error.retryAfterMs, Math.random);
    this.#failures += 1;
    await deadline.sleep(wait);
  }

  /** Null for what has been heard before, and for what only newer clients know. Throws OctetError. */
  #hear(told: ServerEvent): JobEvent | null {
    if (told.type === "error") throw faultOfEvent(told.data, "", null);
    const number = numberOf(told);
    if (number <= this.#last) return null;
    this.#last = number;
    this.#failures = 0;
    if (told.type === "status") return { type: "status", number, job: parsed<Job>(told) };
    if (told.type === "chunk") return { type: "chunk", number, chunk: parsed<Chunk>(told) };
    if (told.type !== "restarted") return null;
    return { type: "restarted", number, attempt: parsed<{ attempt: number }>(told).attempt };
  }
}

/** Of one connection: it ends with the whole, or when nothing comes. */
class Watch {
  readonly deadline: Deadline;
  isIdle = false;
  #timer: ReturnType<typeof setTimeout>;

  constructor(
    readonly idleMs: number,
    whole: Deadline,
  ) {
    this.deadline = new Deadline(null, whole.signal);
    this.#timer = setTimeout(this.#idle, Math.min(idleMs, LONGEST_MS));
  }

  readonly heard = (): void => {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(this.#idle, Math.min(this.idleMs, LONGEST_MS));
  };

  readonly #idle = (): void => {
    this.isIdle = true;
    this.deadline.cancel();
  };

  end(): void {
    clearTimeout(this.#timer);
    this.deadline.end();
  }
}

function numberOf(told: ServerEvent): number {
  const number = /^\d{1,15}$/.test(told.id) ? Number(told.id) : 0;
  if (number === 0) throw new ProtocolError(`an event of a job must have a number, got ${told.id.slice(0, 40)}`);
  return number;
}

function lost(message: string): OctetError {
  return new ReplicaLost(message, { code: "cut_off" });
}

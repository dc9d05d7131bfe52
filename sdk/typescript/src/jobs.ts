/** Background jobs: submit, watch, cancel. */

import type { Chunk } from "./answer.js";
import { type CallOptions, type Caller, randomId } from "./caller.js";
import { Deadline, MAX_TIMER_MS } from "./deadline.js";
import { errorFromEvent } from "./error_mapping.js";
import { Busy, ProtocolError, ReplicaLost, Unavailable } from "./errors.js";
import type { Receipt, Validation } from "./receipt.js";
import { type Asked, type ToolCall, toRequest } from "./request.js";
import { waitMs } from "./retry.js";
import type { ServerEvent } from "./sse.js";
import { parseEventData, pathSegment, queryString, readEvents } from "./transport.js";

export type JobStatus = "queued" | "running" | "done" | "failed" | "cancelled";

export interface JobError {
  message: string;
  type: string;
  param: string | null;
  code: string | null;
}

export interface Job {
  id: string;
  status: JobStatus;
  /** Times are ISO 8601; null for stages that the job has not reached. */
  submitted_at: string;
  started_at: string | null;
  ended_at: string | null;
  /** The answer, or the answer so far until the job ends. Lists of jobs leave it out. */
  text: string;
  tool_calls: ToolCall[];
  /** The answer was cut off; the text holds the part that was generated. */
  partial: boolean;
  /** Why the job failed. */
  error: JobError | null;
  finish_reason: string | null;
  validation: Validation | null;
  /** Of the last attempt. */
  receipt: Receipt | null;
  /** Number of times the job was started; more than one if a router stopped in between. */
  attempts: number;
  /** Milliseconds until a queued job starts; null if no rate was measured. */
  estimated_wait_ms: number | null;
}

/** Events are numbered from 1, without gaps; all watchers see the same numbers. */
export type JobEvent =
  | { readonly type: "status"; readonly number: number; readonly job: Job }
  | { readonly type: "chunk"; readonly number: number; readonly chunk: Chunk }
  /** The job starts over; earlier chunks are void. */
  | { readonly type: "restarted"; readonly number: number; readonly attempt: number };

export function hasEnded(job: Job): boolean {
  return job.status !== "queued" && job.status !== "running";
}

export interface SubmitOptions extends CallOptions {
  /** Two submissions with the same key are one job. Default: a random key for this call and its retries. */
  readonly idempotencyKey?: string;
}

export interface ListOptions extends CallOptions {
  readonly limit?: number;
  /** List only jobs older than this one. */
  readonly before?: string;
}

/** Options for watching a job. */
export interface Watching {
  readonly signal?: AbortSignal;
  /** For the whole watch. Default: no limit. */
  readonly timeoutMs?: number;
  /** Send only events with a higher number. */
  readonly after?: number;
  /** A connection without data for this long is closed and reopened. */
  readonly idleMs?: number;
  /** Maximum number of consecutive reconnects without an event. */
  readonly maxResumes?: number;
}

export class Jobs {
  constructor(private readonly caller: Caller) {}

  /** Returns when the job is stored; it will then end exactly once. `timeoutMs` applies to this call, not to the job. */
  async submit(asked: Asked, options: SubmitOptions = {}): Promise<Job> {
    const headers = { "idempotency-key": options.idempotencyKey ?? randomId() };
    return this.caller.fetch<Job>({ method: "POST", path: "/v1/jobs", body: toRequest(asked), headers }, options);
  }

  /** Throws NotFound. */
  async get(id: string, options: CallOptions = {}): Promise<Job> {
    return this.caller.fetch<Job>({ method: "GET", path: jobPath(id) }, options);
  }

  /** The caller's own jobs, newest first. */
  async list(options: ListOptions = {}): Promise<Job[]> {
    const path = "/v1/jobs" + queryString({ limit: options.limit, before: options.before });
    const { jobs } = await this.caller.fetch<{ jobs: Job[] }>({ method: "GET", path }, options);
    return jobs;
  }

  /** Past and future events until the job ends. Lost connections are reopened. */
  events(id: string, watching: Watching = {}): JobEvents {
    return new JobEvents(this.caller, `${jobPath(id)}/events`, watching);
  }

  /** Returns the job's final state: cancelled, or ended earlier. */
  async cancel(id: string, options: CallOptions = {}): Promise<Job> {
    return this.caller.fetch<Job>({ method: "POST", path: `${jobPath(id)}/cancel` }, options);
  }

  /** Returns the job when it has ended; `status` says how. The job continues if the wait is aborted. */
  async wait(id: string, watching: Watching = {}): Promise<Job> {
    for await (const event of this.events(id, watching)) {
      if (event.type === "status" && hasEnded(event.job)) return event.job;
    }
    const { signal, timeoutMs } = watching;
    const options = { ...(signal === undefined ? {} : { signal }), ...(timeoutMs === undefined ? {} : { timeoutMs }) };
    return this.get(id, options); // the job had ended, and the caller knew all of its events
  }
}

/** No events are left: the job has ended. */
const NO_CONTENT = 204;
const DEFAULT_IDLE_MS = 60_000;
/** With waits of up to five seconds, this covers the restart of a router. */
const DEFAULT_MAX_RESUMES = 20;

/** The events of a job, each exactly once, across reconnects. */
export class JobEvents implements AsyncIterable<JobEvent> {
  #last: number;
  #failures = 0;

  constructor(
    private readonly caller: Caller,
    private readonly path: string,
    private readonly watching: Watching,
  ) {
    this.#last = watching.after ?? 0;
  }

  /** Number of the last event received, from which another watch may continue. */
  get last(): number {
    return this.#last;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<JobEvent, void, undefined> {
    const deadline = new Deadline(this.watching.timeoutMs ?? null, this.watching.signal);
    try {
      for (;;) {
        try {
          if (yield* this.#readConnection(deadline)) return;
        } catch (error) {
          await this.#waitToReconnect(error, deadline);
        }
      }
    } finally {
      deadline.end();
    }
  }

  /** Returns true when the job has ended. Throws OctetError. */
  async *#readConnection(overall: Deadline): AsyncGenerator<JobEvent, boolean, undefined> {
    const idle = new IdleTimeout(this.watching.idleMs ?? DEFAULT_IDLE_MS, overall);
    try {
      const path = this.path + queryString({ after: this.#last === 0 ? undefined : this.#last });
      const response = await this.caller.transport.send({ method: "GET", path }, idle.deadline);
      if (response.status === NO_CONTENT) return true;
      for await (const serverEvent of readEvents(response, idle.deadline, idle.restart)) {
        const event = this.#parse(serverEvent);
        if (event === null) continue;
        yield event;
        if (event.type === "status" && hasEnded(event.job)) return true;
      }
    } catch (error) {
      throw idle.hasExpired ? connectionLost(`no data arrived for ${idle.idleMs} ms`) : error;
    } finally {
      idle.end();
    }
    throw connectionLost("the events ended before the job did");
  }

  /** Throws the error if reconnecting is pointless; also Cancelled, DeadlineExceeded. */
  async #waitToReconnect(error: unknown, deadline: Deadline): Promise<void> {
    if (deadline.signal.aborted) throw deadline.error();
    const isTransient = error instanceof Busy || error instanceof Unavailable || error instanceof ReplicaLost;
    if (!isTransient || this.#failures >= (this.watching.maxResumes ?? DEFAULT_MAX_RESUMES)) throw error;
    if ((error.retryAfterMs ?? 0) > this.caller.policy.longestRetryAfterMs) throw error;
    const wait = waitMs(this.caller.policy, this.#failures, error.retryAfterMs, Math.random);
    this.#failures += 1;
    await deadline.sleep(wait);
  }

  /** Null for repeated events and for events that only newer clients know. Throws OctetError. */
  #parse(event: ServerEvent): JobEvent | null {
    if (event.type === "error") throw errorFromEvent(event.data, "", null);
    const number = eventNumber(event);
    if (number <= this.#last) return null;
    this.#last = number;
    this.#failures = 0;
    if (event.type === "status") return { type: "status", number, job: parseEventData<Job>(event) };
    if (event.type === "chunk") return { type: "chunk", number, chunk: parseEventData<Chunk>(event) };
    if (event.type !== "restarted") return null;
    return { type: "restarted", number, attempt: parseEventData<{ attempt: number }>(event).attempt };
  }
}

/** The deadline of one connection: it ends with the whole watch, or when no data arrives. */
class IdleTimeout {
  readonly deadline: Deadline;
  hasExpired = false;
  #timer: ReturnType<typeof setTimeout>;

  constructor(
    readonly idleMs: number,
    overall: Deadline,
  ) {
    this.deadline = new Deadline(null, overall.signal);
    this.#timer = this.#start();
  }

  readonly restart = (): void => {
    clearTimeout(this.#timer);
    this.#timer = this.#start();
  };

  end(): void {
    clearTimeout(this.#timer);
    this.deadline.end();
  }

  #start(): ReturnType<typeof setTimeout> {
    return setTimeout(
      () => {
        this.hasExpired = true;
        this.deadline.cancel();
      },
      Math.min(this.idleMs, MAX_TIMER_MS),
    );
  }
}

function eventNumber(event: ServerEvent): number {
  const number = /^\d{1,15}$/.test(event.id) ? Number(event.id) : 0;
  if (number === 0) throw new ProtocolError(`a job event must have a number, got ${event.id.slice(0, 40)}`);
  return number;
}

function connectionLost(message: string): ReplicaLost {
  return new ReplicaLost(message, { code: "cut_off" });
}

function jobPath(id: string): string {
  return `/v1/jobs/${pathSegment("id", id)}`;
}

/** Submitting, watching and ending jobs. */

import type { CallOptions, Caller } from "./caller.js";
import { type Job, hasEnded } from "./job.js";
import { JobEvents, type Watching } from "./job_events.js";
import { query, segment } from "./path.js";
import { randomName } from "./random.js";
import { type Asked, requestOf } from "./request.js";

export interface SubmitOptions extends CallOptions {
  /** Two submissions with the same key are one job. Left out: one is made, for this call and its retries. */
  readonly idempotencyKey?: string;
}

export interface ListOptions extends CallOptions {
  readonly limit?: number;
  /** Older than this job. */
  readonly before?: string;
}

export class Jobs {
  constructor(private readonly caller: Caller) {}

  /** When it returns the job is on record, and will end once. `timeoutMs` is for this call, not for the job. */
  async submit(asked: Asked, options: SubmitOptions = {}): Promise<Job> {
    const headers = { "idempotency-key": options.idempotencyKey ?? randomName() };
    return this.caller.fetch<Job>({ method: "POST", path: "/v1/jobs", body: requestOf(asked), headers }, options);
  }

  /** Throws NotFound. */
  async get(id: string, options: CallOptions = {}): Promise<Job> {
    return this.caller.fetch<Job>({ method: "GET", path: pathOf(id) }, options);
  }

  /** The caller's own, newest first. */
  async list(options: ListOptions = {}): Promise<Job[]> {
    const path = "/v1/jobs" + query({ limit: options.limit, before: options.before });
    const { jobs } = await this.caller.fetch<{ jobs: Job[] }>({ method: "GET", path }, options);
    return jobs;
  }

  /** What has happened and what is yet to come, until the job has ended. Lost connections are made anew. */
  events(id: string, watching: Watching = {}): JobEvents {
    return new JobEvents(this.caller, `${pathOf(id)}/events`, watching);
  }

  /** The job as it is then: cancelled, or ended before. */
  async cancel(id: string, options: CallOptions = {}): Promise<Job> {
    return this.caller.fetch<Job>({ method: "POST", path: `${pathOf(id)}/cancel` }, options);
  }

  /** The job when it has ended, whichever way: `status` says how. The job goes on when the waiting ends. */
  async wait(id: string, watching: Watching = {}): Promise<Job> {
    for await (const event of this.events(id, watching)) {
      if (event.type === "status" && hasEnded(event.job)) return event.job;
    }
    return this.get(id, options(watching)); // it had ended, and the caller knew all of its events
  }
}

function options({ signal, timeoutMs }: Watching): CallOptions {
  return { ...(signal === undefined ? {} : { signal }), ...(timeoutMs === undefined ? {} : { timeoutMs }) };
}

function pathOf(id: string): string {
  return `/v1/jobs/${segment("id", id)}`;
}

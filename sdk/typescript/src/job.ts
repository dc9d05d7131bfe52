/** Requests that nobody need wait for. */

import type { Chunk } from "./answer.js";
import type { Receipt, Validation } from "./receipt.js";
import type { ToolCall } from "./request.js";

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
  /** ISO 8601; null where it has not come that far. */
  submitted_at: string;
  started_at: string | null;
  ended_at: string | null;
  /** Until it has ended: what has been said so far. A list of jobs leaves it out. */
  text: string;
  tool_calls: ToolCall[];
  /** It was cut off: the text is what had been said until then. */
  partial: boolean;
  /** Why it failed. */
  error: JobError | null;
  finish_reason: string | null;
  validation: Validation | null;
  /** Of the last attempt. */
  receipt: Receipt | null;
  /** Times it was begun: more than one where a router ended in between. */
  attempts: number;
}

/** Numbers are the same for everybody who watches, from 1 and without gaps. */
export type JobEvent =
  | { readonly type: "status"; readonly number: number; readonly job: Job }
  | { readonly type: "chunk"; readonly number: number; readonly chunk: Chunk }
  /** It begins anew: what was said before does not count. */
  | { readonly type: "restarted"; readonly number: number; readonly attempt: number };

export function hasEnded(job: Job): boolean {
  return job.status !== "queued" && job.status !== "running";
}

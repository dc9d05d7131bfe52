/** What comes back. */

import type { Receipt } from "./receipt.js";
import type { ToolCall } from "./request.js";

/** What the task's verifier made of the answer. */
export interface Validation {
  verifier: string;
  /** passed, failed, or skipped where nothing could be said. */
  outcome: string;
  detail: string;
  seconds: number;
}

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  /** Prompt tokens that were reused. */
  cache_hit_tokens: number;
}

/** A piece of an answer, as it comes. */
export interface Chunk {
  text: string;
  tool_calls?: ToolCall[];
  logprobs?: unknown[];
}

export interface Answer {
  /** Of its receipt. */
  id: string;
  text: string;
  finish_reason: string;
  tool_calls: ToolCall[];
  logprobs?: unknown[];
  partial: boolean;
  /** Null unless the request asked for it. */
  validation: Validation | null;
  specialist: string;
  usage: Usage;
  receipt: Receipt;
}

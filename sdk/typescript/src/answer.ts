/** What comes back. */

import type { Receipt, Validation } from "./receipt.js";
import type { ToolCall } from "./request.js";

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  total_tokens: number;
  /** Prompt tokens that were reused. */
  cache_hit_tokens: number;
}

export interface TokenLogprob {
  token: string;
  /** Of the model's own distribution, before temperature and filters. */
  logprob: number;
}

/** Of one token that was said. */
export interface TokenLogprobs extends TokenLogprob {
  /** Most likely first. */
  top: TokenLogprob[];
}

export interface ToolCallPart {
  /** From 0, in the order they are written. */
  index: number;
  /** With the first part of a call, which says both; empty after. */
  id: string;
  name: string;
  /** To be joined with the parts before. */
  arguments: string;
}

/** A piece of an answer, as it comes. */
export interface Chunk {
  text: string;
  tool_calls?: ToolCallPart[];
  logprobs?: TokenLogprobs[];
}

export interface Answer {
  /** Of its receipt. */
  id: string;
  text: string;
  finish_reason: string;
  tool_calls: ToolCall[];
  /** Where the request asked for them. */
  logprobs?: TokenLogprobs[];
  partial: boolean;
  /** Null unless the request asked for it. */
  validation: Validation | null;
  specialist: string;
  usage: Usage;
  receipt: Receipt;
}

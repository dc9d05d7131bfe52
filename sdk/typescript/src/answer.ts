/** Answers, and the chunks they are assembled from. */

import type { Receipt, Validation } from "./receipt.js";
import type { ToolCall } from "./request.js";

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  total_tokens: number;
  /** Prompt tokens found in the prefix cache. */
  cache_hit_tokens: number;
}

export interface TokenLogprob {
  token: string;
  /** Of the model's own distribution, before temperature and filters. */
  logprob: number;
}

/** Log probabilities of one generated token. */
export interface TokenLogprobs extends TokenLogprob {
  /** Most likely first. */
  top: TokenLogprob[];
}

export interface ToolCallPart {
  /** Index of the call within the answer, from 0. */
  index: number;
  /** Id and name are set in the first part of a call and empty afterwards. */
  id: string;
  name: string;
  /** To be appended to the arguments of the earlier parts. */
  arguments: string;
}

/** One part of a streamed answer. */
export interface Chunk {
  text: string;
  tool_calls?: ToolCallPart[];
  logprobs?: TokenLogprobs[];
}

export interface Answer {
  /** Also the id of its receipt. */
  id: string;
  text: string;
  finish_reason: string;
  tool_calls: ToolCall[];
  /** Set if the request asked for log probabilities. */
  logprobs?: TokenLogprobs[];
  partial: boolean;
  /** Null unless the request asked for validation. */
  validation: Validation | null;
  specialist: string;
  /** The specialist and its adapters, in the order applied; empty for a bare model. */
  experts_used: string[];
  tokens_generated: number;
  /** From the request's arrival at the router to the end of its answer. */
  latency_ms: number;
  usage: Usage;
  receipt: Receipt;
}

/** The last event of a streamed answer. */
export interface AnswerEnd {
  readonly finish_reason: string;
  readonly validation?: Validation | null;
  readonly receipt: Receipt;
}

/** Assembles an answer from its chunks. */
export class AnswerBuilder {
  #text = "";
  readonly #calls = new Map<number, ToolCall>();
  readonly #logprobs: TokenLogprobs[] = [];
  #hasBegun = false;

  get hasBegun(): boolean {
    return this.#hasBegun;
  }

  get text(): string {
    return this.#text;
  }

  add(chunk: Chunk): void {
    this.#hasBegun = true;
    this.#text += chunk.text;
    for (const part of chunk.tool_calls ?? []) this.#addToolCallPart(part);
    for (const logprobs of chunk.logprobs ?? []) this.#logprobs.push(logprobs);
  }

  build({ receipt, finish_reason, validation }: AnswerEnd): Answer {
    return {
      id: receipt.request_id,
      text: this.#text,
      finish_reason,
      tool_calls: [...this.#calls].sort(([left], [right]) => left - right).map(([, call]) => call),
      ...(this.#logprobs.length > 0 ? { logprobs: [...this.#logprobs] } : {}),
      partial: false,
      validation: validation ?? null,
      specialist: receipt.specialist,
      experts_used: receipt.experts_used,
      tokens_generated: receipt.usage?.completion_tokens ?? 0,
      latency_ms: Math.round(receipt.timings.total * 1000),
      usage: usageOf(receipt),
      receipt,
    };
  }

  #addToolCallPart(part: ToolCallPart): void {
    const call = this.#calls.get(part.index) ?? { id: "", name: "", arguments: "" };
    this.#calls.set(part.index, {
      id: call.id || part.id,
      name: call.name || part.name,
      arguments: call.arguments + part.arguments,
    });
  }
}

function usageOf(receipt: Receipt): Usage {
  const { prompt_tokens = 0, completion_tokens = 0, cache_hit_tokens = 0 } = receipt.usage ?? {};
  return { prompt_tokens, completion_tokens, total_tokens: prompt_tokens + completion_tokens, cache_hit_tokens };
}

/** Chunks of an answer, put together. */

import type { Chunk, TokenLogprobs, ToolCallPart } from "./answer.js";
import type { ToolCall } from "./request.js";

export class Said {
  #text = "";
  readonly #calls = new Map<number, ToolCall>();
  readonly #logprobs: TokenLogprobs[] = [];
  #begun = false;

  /** Whether anything has come. */
  get begun(): boolean {
    return this.#begun;
  }

  get text(): string {
    return this.#text;
  }

  get toolCalls(): ToolCall[] {
    return [...this.#calls].sort(([one], [other]) => one - other).map(([, call]) => call);
  }

  get logprobs(): readonly TokenLogprobs[] {
    return this.#logprobs;
  }

  hear(chunk: Chunk): void {
    this.#begun = true;
    this.#text += chunk.text;
    for (const part of chunk.tool_calls ?? []) this.#join(part);
    for (const each of chunk.logprobs ?? []) this.#logprobs.push(each);
  }

  #join(part: ToolCallPart): void {
    const known = this.#calls.get(part.index) ?? { id: "", name: "", arguments: "" };
    this.#calls.set(part.index, {
      id: known.id || part.id,
      name: known.name || part.name,
      arguments: known.arguments + part.arguments,
    });
  }
}

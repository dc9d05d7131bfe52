/** Asking for an answer: whole, or as it comes. */

import type { Answer } from "./answer.js";
import { AnswerStream, type Hooks } from "./answer_stream.js";
import type { CallOptions, Caller } from "./caller.js";
import { type Asked, type InferRequest, requestOf } from "./request.js";
import type { Call } from "./transport.js";

export class Inference {
  constructor(private readonly caller: Caller) {}

  /** Throws OctetError. */
  async infer(asked: Asked, options: CallOptions = {}): Promise<Answer> {
    const request = requestOf(asked);
    return this.caller.persist<Answer>(
      this.#maker(() => request, options, false),
      options,
      false,
    );
  }

  /** `request` is called after the hooks' `begin`. */
  stream(request: () => InferRequest, options: CallOptions, hooks?: Hooks): AnswerStream {
    return new AnswerStream(this.caller, this.#maker(request, options, true), options, hooks);
  }

  /** The server hears how much time is left, so that it ends in time and with what was said. */
  #maker(asked: () => InferRequest, options: CallOptions, stream: boolean): (leftMs: number) => Call {
    const isGiven = this.caller.given(options) !== undefined;
    return (leftMs) => {
      const request = asked();
      const timeout = isGiven ? Math.min(request.timeout_ms ?? Infinity, Math.max(1, Math.floor(leftMs))) : undefined;
      const body = { ...request, ...(timeout === undefined ? {} : { timeout_ms: timeout }), stream };
      return { method: "POST", path: "/v1/infer", body };
    };
  }
}

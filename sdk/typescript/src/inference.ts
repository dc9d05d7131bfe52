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
    let began: number | undefined;
    return (leftMs) => {
      began ??= Date.now();
      const request = asked();
      const first = request.first_token_timeout_ms;
      const body: InferRequest & { stream: boolean } = { ...request, stream };
      if (isGiven) body.timeout_ms = Math.min(request.timeout_ms ?? Infinity, Math.max(1, Math.floor(leftMs)));
      if (!(first !== undefined && first > 0)) return { method: "POST", path: "/v1/infer", body };
      const until = began + first;
      body.first_token_timeout_ms = Math.max(1, Math.round(until - Date.now()));
      return { method: "POST", path: "/v1/infer", body, until };
    };
  }
}

/** Requests for an answer, whole or streamed. */

import type { Answer } from "./answer.js";
import { AnswerStream, type StreamHooks } from "./answer_stream.js";
import type { CallOptions, Caller } from "./caller.js";
import { type Asked, type InferRequest, toRequest } from "./request.js";
import type { Call } from "./transport.js";

export class Inference {
  constructor(private readonly caller: Caller) {}

  /** Throws OctetError. */
  async infer(asked: Asked, options: CallOptions = {}): Promise<Answer> {
    const request = toRequest(asked);
    const makeCall = this.#callFactory(() => request, options, false);
    return this.caller.fetchWithRetries<Answer>(makeCall, options, false);
  }

  /** `request` is called after the hooks' `begin`. */
  stream(request: () => InferRequest, options: CallOptions, hooks?: StreamHooks): AnswerStream {
    return new AnswerStream(this.caller, this.#callFactory(request, options, true), options, hooks);
  }

  /** Sends the time left to the server, so that the server ends the request in time and returns the partial answer. */
  #callFactory(makeRequest: () => InferRequest, options: CallOptions, stream: boolean): (leftMs: number) => Call {
    const hasTimeout = this.caller.configuredTimeout(options) !== undefined;
    let startedAt: number | undefined;
    return (leftMs) => {
      startedAt ??= Date.now();
      const request = makeRequest();
      const firstTokenMs = request.first_token_timeout_ms;
      const body: InferRequest & { stream: boolean } = { ...request, stream };
      if (hasTimeout) body.timeout_ms = Math.min(request.timeout_ms ?? Infinity, Math.max(1, Math.floor(leftMs)));
      if (!(firstTokenMs !== undefined && firstTokenMs > 0)) return { method: "POST", path: "/v1/infer", body };
      const until = startedAt + firstTokenMs;
      body.first_token_timeout_ms = Math.max(1, Math.round(until - Date.now()));
      return { method: "POST", path: "/v1/infer", body, until };
    };
  }
}

/** Requests for an answer, whole or streamed. */

import type { Answer } from "./answer.js";
import { AnswerStream, type StreamHooks } from "./answer_stream.js";
import { type CallOptions, type Caller, checkedWait } from "./caller.js";
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

  /** Sends the time left to the server, so that the server ends the request in time and returns the partial answer; and
   * how long a place may be waited for, if a ticket would be used. */
  #callFactory(makeRequest: () => InferRequest, options: CallOptions, stream: boolean): (leftMs: number) => Call {
    const timeoutMs = this.caller.configuredTimeout(options);
    const waitMs = checkedWait(options);
    const maxRetries = this.caller.maxRetries(options);
    let startedAt: number | undefined;
    let attempts = 0;
    return (leftMs) => {
      startedAt ??= Date.now();
      attempts += 1;
      const request = makeRequest();
      const firstTokenMs = request.first_token_timeout_ms;
      const body: InferRequest & { stream: boolean } = { ...request, stream };
      if (timeoutMs !== undefined) {
        body.timeout_ms = Math.min(request.timeout_ms ?? Infinity, timeoutMs, Math.max(1, Math.floor(leftMs)));
      }
      const waitLeftMs = Math.max(0, Math.floor(startedAt + waitMs - Date.now()));
      const usesTicket = attempts <= maxRetries || (maxRetries === 0 && options.waitMs !== undefined);
      const headers: Record<string, string> = usesTicket ? { "octet-wait-ms": String(waitLeftMs) } : {};
      const call: Call = { method: "POST", path: "/v1/infer", body, headers };
      if (!(firstTokenMs !== undefined && firstTokenMs > 0)) return call;
      const until = startedAt + firstTokenMs + waitMs;
      body.first_token_timeout_ms = Math.max(1, Math.min(firstTokenMs, Math.round(until - Date.now())));
      return { ...call, until };
    };
  }
}

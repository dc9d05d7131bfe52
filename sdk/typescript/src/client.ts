/** The one thing a caller makes. */

import type { Answer } from "./answer.js";
import type { AnswerStream } from "./answer_stream.js";
import { type CallOptions, Caller } from "./caller.js";
import { Chat, type ChatOptions } from "./chat.js";
import { fromEnvironment } from "./environment.js";
import { Inference } from "./inference.js";
import { Jobs } from "./jobs.js";
import { Models } from "./models.js";
import { Receipts } from "./receipts.js";
import { type Asked, requestOf } from "./request.js";
import { RetryBudget, type RetryPolicy, policyOf } from "./retry.js";
import { type Fetch, Transport } from "./transport.js";

export const DEFAULT_URL = "http://127.0.0.1:8051";

export interface OctetOptions {
  /** Where the router speaks HTTP; default http://127.0.0.1:8051. */
  readonly baseUrl?: string;
  /** Default, in Node only: the environment's OCTET_API_KEY. */
  readonly apiKey?: string;
  /** Send the key over http: to other machines too: something else guards the way. */
  readonly insecure?: boolean;
  /** For every call that does not say another. */
  readonly timeoutMs?: number;
  readonly retry?: Partial<RetryPolicy>;
  readonly fetch?: Fetch;
}

export class Octet {
  readonly jobs: Jobs;
  readonly models: Models;
  readonly receipts: Receipts;
  readonly #inference: Inference;

  /** Throws InvalidRequest. */
  constructor(options: OctetOptions = {}) {
    const apiKey = options.apiKey ?? fromEnvironment("OCTET_API_KEY");
    const fetch = options.fetch ?? ((url: string, init: RequestInit) => globalThis.fetch(url, init));
    const transport = new Transport(options.baseUrl ?? DEFAULT_URL, apiKey, fetch, options.insecure);
    const caller = new Caller(transport, policyOf(options.retry), new RetryBudget(), options.timeoutMs);
    this.#inference = new Inference(caller);
    this.jobs = new Jobs(caller);
    this.models = new Models(caller);
    this.receipts = new Receipts(caller);
  }

  /** The whole answer. Throws OctetError. */
  async infer(asked: Asked, options: CallOptions = {}): Promise<Answer> {
    return this.#inference.infer(asked, options);
  }

  /** The answer as it comes: `for await (const chunk of octet.stream(...))`. */
  stream(asked: Asked, options: CallOptions = {}): AnswerStream {
    const request = requestOf(asked);
    return this.#inference.stream(() => request, options);
  }

  /** A conversation of many turns. */
  chat(options: ChatOptions = {}): Chat {
    return new Chat(this.#inference, options);
  }
}

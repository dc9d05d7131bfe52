/** The client. */

import type { Answer } from "./answer.js";
import type { AnswerStream } from "./answer_stream.js";
import { type CallOptions, Caller } from "./caller.js";
import { Chat, type ChatOptions } from "./chat.js";
import { Inference } from "./inference.js";
import { Jobs } from "./jobs.js";
import type { Receipt } from "./receipt.js";
import { type Asked, toRequest } from "./request.js";
import { RetryBudget, type RetryPolicy, resolvePolicy } from "./retry.js";
import { type Fetch, Transport, pathSegment } from "./transport.js";

export const DEFAULT_URL = "http://127.0.0.1:8051";

export interface OctetOptions {
  /** The router's HTTP address; default http://127.0.0.1:8051. */
  readonly baseUrl?: string;
  /** Default, in Node only: the environment variable OCTET_API_KEY. */
  readonly apiKey?: string;
  /** Send the API key to other machines even over http:, if the network itself is secured. */
  readonly insecure?: boolean;
  /** For calls that do not set their own. */
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
    const apiKey = options.apiKey ?? environmentVariable("OCTET_API_KEY");
    const fetch = options.fetch ?? ((url: string, init: RequestInit) => globalThis.fetch(url, init));
    const transport = new Transport(options.baseUrl ?? DEFAULT_URL, apiKey, fetch, options.insecure);
    const caller = new Caller(transport, resolvePolicy(options.retry), new RetryBudget(), options.timeoutMs);
    this.#inference = new Inference(caller);
    this.jobs = new Jobs(caller);
    this.models = new Models(caller);
    this.receipts = new Receipts(caller);
  }

  /** Returns the whole answer. Throws OctetError. */
  async infer(asked: Asked, options: CallOptions = {}): Promise<Answer> {
    return this.#inference.infer(asked, options);
  }

  /** Streams the answer: `for await (const chunk of octet.stream(...))`. */
  stream(asked: Asked, options: CallOptions = {}): AnswerStream {
    const request = toRequest(asked);
    return this.#inference.stream(() => request, options);
  }

  /** A conversation of several turns. */
  chat(options: ChatOptions = {}): Chat {
    return new Chat(this.#inference, options);
  }
}

export interface Model {
  id: string;
  object: "model";
  /** Seconds since 1970. */
  created: number;
  owned_by: string;
}

/** Names that requests may address: `octet`, and every name that pins a specialist. */
export class Models {
  constructor(private readonly caller: Caller) {}

  async list(options: CallOptions = {}): Promise<Model[]> {
    const { data } = await this.caller.fetch<{ data: Model[] }>({ method: "GET", path: "/v1/models" }, options);
    return data;
  }

  /** Throws NotFound. */
  async get(id: string, options: CallOptions = {}): Promise<Model> {
    const path = id.split("/").map((part) => pathSegment("id", part));
    return this.caller.fetch<Model>({ method: "GET", path: `/v1/models/${path.join("/")}` }, options);
  }
}

/** Receipts that the router still stores. */
export class Receipts {
  constructor(private readonly caller: Caller) {}

  /** By the id of a request or of an answer. Throws NotFound. */
  async get(id: string, options: CallOptions = {}): Promise<Receipt> {
    return this.caller.fetch<Receipt>({ method: "GET", path: `/v1/receipts/${pathSegment("id", id)}` }, options);
  }
}

interface NodeLike {
  readonly process?: {
    readonly versions?: { readonly node?: string };
    readonly env?: Record<string, string | undefined>;
  };
}

/** Undefined outside Node: a bundler's substitute for the environment must not hold an API key. */
function environmentVariable(name: string): string | undefined {
  const { process } = globalThis as NodeLike;
  return process?.versions?.node === undefined ? undefined : process.env?.[name] || undefined;
}

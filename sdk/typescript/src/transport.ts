/** One request and its response, over fetch. */

import type { Deadline } from "./deadline.js";
import { OctetError, ProtocolError, ReplicaLost, Unavailable, invalid } from "./errors.js";
import { faultOf } from "./fault.js";
import { EventParser, type ServerEvent } from "./sse.js";

export type Fetch = (url: string, init: RequestInit) => Promise<Response>;

export interface Call {
  readonly method: "GET" | "POST";
  readonly path: string;
  readonly body?: unknown;
  readonly headers?: Readonly<Record<string, string>>;
  /** By Date.now(): when the beginning of an answer is of no use any more. */
  readonly until?: number;
}

/** As a URL writes hosts. */
const LOOPBACK = /^(localhost|127(\.\d{1,3}){3}|\[::1\])$/;
const MOST_BODY_BYTES = 64 * 1024 * 1024;
/** Of Node: nobody was there to hear it. A browser does not say. */
const UNSENT = new Set([
  "ECONNREFUSED",
  "EAI_AGAIN",
  "ENOTFOUND",
  "EHOSTUNREACH",
  "ENETUNREACH",
  "UND_ERR_CONNECT_TIMEOUT",
]);

export class Transport {
  readonly #base: string;
  readonly #headers: Readonly<Record<string, string>>;
  readonly #fetch: Fetch;

  /** Throws InvalidRequest. */
  constructor(baseUrl: string, apiKey: string | undefined, fetch: Fetch, insecure = false) {
    this.#base = checkedBase(baseUrl);
    if (apiKey !== undefined && !insecure) checkUnheard(this.#base);
    this.#headers = apiKey === undefined ? {} : { authorization: `Bearer ${checkedKey(apiKey)}` };
    this.#fetch = fetch;
  }

  /** Whose body is yet to be read. Throws OctetError, also for a status that is no success. */
  async send(call: Call, deadline: Deadline): Promise<Response> {
    deadline.check();
    let response: Response;
    try {
      response = await this.#fetch(this.#base + call.path, this.#init(call, deadline.signal));
    } catch (cause) {
      throw deadline.signal.aborted ? deadline.error() : this.#unreachable(cause);
    }
    if (response.ok) return response;
    throw faultOf(response, await textOf(response, deadline));
  }

  #init(call: Call, signal: AbortSignal): RequestInit {
    const init: RequestInit = { method: call.method, signal, redirect: "error", cache: "no-store" };
    const headers = { ...this.#headers, ...call.headers };
    if (call.body === undefined) return { ...init, headers };
    return { ...init, headers: { ...headers, "content-type": "application/json" }, body: JSON.stringify(call.body) };
  }

  #unreachable(cause: unknown): OctetError {
    const reason = reasonOf(cause);
    const message = `nothing answers at ${this.#base}: ${reason.message}`;
    return new Unavailable(message, { code: "unreachable", unsent: UNSENT.has(reason.code), cause });
  }
}

/** Throws OctetError. */
export async function jsonOf<T>(response: Response, deadline: Deadline): Promise<T> {
  const text = await textOf(response, deadline);
  try {
    return JSON.parse(text) as T;
  } catch (cause) {
    throw new ProtocolError("the server answered with something else than JSON", { code: "malformed", cause });
  }
}

/** `heard` is called for whatever comes, comments too. Leaving the loop closes the connection. Throws OctetError. */
export async function* eventsOf(
  response: Response,
  deadline: Deadline,
  heard: () => void = () => undefined,
): AsyncGenerator<ServerEvent, void, undefined> {
  const parser = new EventParser();
  for await (const bytes of bytesOf(response, deadline)) {
    heard();
    yield* parser.push(bytes);
  }
}

async function textOf(response: Response, deadline: Deadline): Promise<string> {
  const decoder = new TextDecoder();
  let text = "";
  let size = 0;
  for await (const bytes of bytesOf(response, deadline)) {
    size += bytes.length;
    if (size > MOST_BODY_BYTES) {
      throw new ProtocolError(`a response must be at most ${MOST_BODY_BYTES} bytes long`, { code: "too_large" });
    }
    text += decoder.decode(bytes, { stream: true });
  }
  return text + decoder.decode();
}

async function* bytesOf(response: Response, deadline: Deadline): AsyncGenerator<Uint8Array, void, undefined> {
  if (response.body === null) return;
  const reader = response.body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } catch (cause) {
    if (deadline.signal.aborted) throw deadline.error();
    const requestId = response.headers.get("x-request-id");
    throw new ReplicaLost(`the connection was lost: ${reasonOf(cause).message}`, { code: "cut_off", requestId, cause });
  } finally {
    reader.cancel().catch(() => undefined); // an aborted stream has nothing left to cancel
  }
}

/** fetch wraps what happened in "fetch failed". */
function reasonOf(error: unknown): { message: string; code: string } {
  let found: unknown = error;
  while (found instanceof Error && found.cause instanceof Error) found = found.cause;
  const code = (found as { code?: unknown } | undefined)?.code;
  const message = found instanceof Error ? found.message : String(found);
  return { message: message || String(code), code: typeof code === "string" ? code : "" };
}

function checkedBase(baseUrl: string): string {
  const isRight = /^https?:\/\/[^/?#\s@]+(\/[^?#\s]*)?$/.test(baseUrl);
  if (!isRight)
    throw invalid("baseUrl", "http:// or https://, a host, and nothing after the path", baseUrl.slice(0, 100));
  if (!URL.canParse(baseUrl)) throw invalid("baseUrl", "a URL", baseUrl.slice(0, 100));
  return baseUrl.replace(/\/+$/, "");
}

/** Whether nobody between here and there could read a key. Throws InvalidRequest. */
function checkUnheard(base: string): void {
  const { protocol, hostname } = new URL(base);
  if (protocol === "https:" || LOOPBACK.test(hostname)) return;
  const limit = "https:// where a key is sent to another machine, or `insecure: true`";
  throw invalid("baseUrl", limit, base.slice(0, 100));
}

/** What is no header would be shown in fetch's own error. */
function checkedKey(apiKey: string): string {
  if (!/^[\x21-\x7e]{1,512}$/.test(apiKey))
    throw invalid("apiKey", "1 to 512 visible ASCII characters", "something else");
  return apiKey;
}

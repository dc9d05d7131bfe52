/** One request and its response over fetch. */

import type { Deadline } from "./deadline.js";
import { errorFromResponse } from "./error_mapping.js";
import { type OctetError, ProtocolError, ReplicaLost, Unavailable, invalid } from "./errors.js";
import { EventParser, type ServerEvent } from "./sse.js";

export type Fetch = (url: string, init: RequestInit) => Promise<Response>;

export interface Call {
  readonly method: "GET" | "POST";
  readonly path: string;
  readonly body?: unknown;
  readonly headers?: Readonly<Record<string, string>>;
  /** By Date.now(): the time by which the answer must have begun. */
  readonly until?: number;
}

/** As hosts are written in a URL. */
const LOOPBACK = /^(localhost|127(\.\d{1,3}){3}|\[::1\])$/;
const MAX_BODY_BYTES = 64 * 1024 * 1024;
/** Node's error codes for a request that was never delivered. Browsers do not report them. */
const UNSENT_CODES = new Set([
  "ECONNREFUSED",
  "EAI_AGAIN",
  "ENOTFOUND",
  "EHOSTUNREACH",
  "ENETUNREACH",
  "UND_ERR_CONNECT_TIMEOUT",
]);

export class Transport {
  readonly #baseUrl: string;
  readonly #headers: Readonly<Record<string, string>>;
  readonly #fetch: Fetch;

  /** Throws InvalidRequest. */
  constructor(baseUrl: string, apiKey: string | undefined, fetch: Fetch, insecure = false) {
    this.#baseUrl = checkBaseUrl(baseUrl);
    if (apiKey !== undefined && !insecure) checkEncrypted(this.#baseUrl);
    this.#headers = apiKey === undefined ? {} : { authorization: `Bearer ${checkApiKey(apiKey)}` };
    this.#fetch = fetch;
  }

  /** Returns a successful response whose body has not been read. Throws OctetError. */
  async send(call: Call, deadline: Deadline): Promise<Response> {
    deadline.check();
    let response: Response;
    try {
      response = await this.#fetch(this.#baseUrl + call.path, this.#init(call, deadline.signal));
    } catch (cause) {
      throw deadline.signal.aborted ? deadline.error() : this.#unreachable(cause);
    }
    if (response.ok) return response;
    throw errorFromResponse(response, await readText(response, deadline));
  }

  #init(call: Call, signal: AbortSignal): RequestInit {
    const init: RequestInit = { method: call.method, signal, redirect: "error", cache: "no-store" };
    const headers = { ...this.#headers, ...call.headers };
    if (call.body === undefined) return { ...init, headers };
    return { ...init, headers: { ...headers, "content-type": "application/json" }, body: JSON.stringify(call.body) };
  }

  #unreachable(cause: unknown): OctetError {
    const { message, code } = rootCause(cause);
    const text = `cannot reach ${this.#baseUrl}: ${message}`;
    return new Unavailable(text, { code: "unreachable", unsent: UNSENT_CODES.has(code), cause });
  }
}

/** Throws OctetError. */
export async function readJson<T>(response: Response, deadline: Deadline): Promise<T> {
  const text = await readText(response, deadline);
  try {
    return JSON.parse(text) as T;
  } catch (cause) {
    throw new ProtocolError("the response is not JSON", { code: "malformed", cause });
  }
}

/** Calls `onData` for all data, comments included. Leaving the loop closes the connection. Throws OctetError. */
export async function* readEvents(
  response: Response,
  deadline: Deadline,
  onData: () => void = () => undefined,
): AsyncGenerator<ServerEvent, void, undefined> {
  const parser = new EventParser();
  for await (const bytes of readBytes(response, deadline)) {
    onData();
    yield* parser.push(bytes);
  }
}

/** Throws ProtocolError. */
export function parseEventData<T>(event: ServerEvent): T {
  try {
    return JSON.parse(event.data) as T;
  } catch (cause) {
    throw new ProtocolError(`the data of the event ${event.type} is not JSON`, { code: "malformed", cause });
  }
}

/** One segment of a URL path. Dots would change the path. Throws InvalidRequest. */
export function pathSegment(field: string, name: string): string {
  if (name === "" || name === "." || name === "..") throw invalid(field, "a name", JSON.stringify(name));
  return encodeURIComponent(name);
}

export function queryString(parameters: Readonly<Record<string, string | number | undefined>>): string {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined);
  if (given.length === 0) return "";
  return "?" + given.map(([name, value]) => `${name}=${encodeURIComponent(String(value))}`).join("&");
}

async function readText(response: Response, deadline: Deadline): Promise<string> {
  const decoder = new TextDecoder();
  let text = "";
  let size = 0;
  for await (const bytes of readBytes(response, deadline)) {
    size += bytes.length;
    if (size > MAX_BODY_BYTES) {
      throw new ProtocolError(`a response must be at most ${MAX_BODY_BYTES} bytes long`, { code: "too_large" });
    }
    text += decoder.decode(bytes, { stream: true });
  }
  return text + decoder.decode();
}

async function* readBytes(response: Response, deadline: Deadline): AsyncGenerator<Uint8Array, void, undefined> {
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
    throw new ReplicaLost(`the connection was lost: ${rootCause(cause).message}`, {
      code: "cut_off",
      requestId,
      cause,
    });
  } finally {
    reader.cancel().catch(() => undefined); // an aborted stream has nothing left to cancel
  }
}

/** fetch wraps the actual error in "fetch failed". */
function rootCause(error: unknown): { message: string; code: string } {
  let cause: unknown = error;
  while (cause instanceof Error && cause.cause instanceof Error) cause = cause.cause;
  const code = (cause as { code?: unknown } | undefined)?.code;
  const message = cause instanceof Error ? cause.message : String(cause);
  return { message: message || String(code), code: typeof code === "string" ? code : "" };
}

function checkBaseUrl(baseUrl: string): string {
  const isValid = /^https?:\/\/[^/?#\s@]+(\/[^?#\s]*)?$/.test(baseUrl);
  if (!isValid)
    throw invalid("baseUrl", "http:// or https://, a host, and nothing after the path", baseUrl.slice(0, 100));
  if (!URL.canParse(baseUrl)) throw invalid("baseUrl", "a URL", baseUrl.slice(0, 100));
  return baseUrl.replace(/\/+$/, "");
}

/** An API key must not cross the network unencrypted. Throws InvalidRequest. */
function checkEncrypted(baseUrl: string): void {
  const { protocol, hostname } = new URL(baseUrl);
  if (protocol === "https:" || LOOPBACK.test(hostname)) return;
  const limit = "https:// to send an API key to another machine, unless `insecure: true` is set";
  throw invalid("baseUrl", limit, baseUrl.slice(0, 100));
}

/** fetch's own error would contain an invalid key, so the message here leaves it out. */
function checkApiKey(apiKey: string): string {
  if (!/^[\x21-\x7e]{1,512}$/.test(apiKey))
    throw invalid("apiKey", "1 to 512 visible ASCII characters", "something else");
  return apiKey;
}

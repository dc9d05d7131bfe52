/** Map responses and error events to typed errors. */

import {
  Busy,
  Cancelled,
  Conflict,
  DeadlineExceeded,
  type Details,
  Forbidden,
  InvalidRequest,
  NoSpecialist,
  NotFound,
  type OctetError,
  ReplicaLost,
  ServerError,
  Unauthenticated,
  Unavailable,
} from "./errors.js";
import type { Receipt } from "./receipt.js";

type ErrorClass = new (message: string, details: Details) => OctetError;

const CLASS_BY_STATUS: Readonly<Record<number, ErrorClass>> = {
  401: Unauthenticated,
  403: Forbidden,
  404: NotFound,
  409: Conflict,
  429: Busy,
  499: Cancelled,
  502: Unavailable,
  503: Unavailable,
  504: DeadlineExceeded,
};

/** Codes that are more specific than the status, or that arrive within a stream, where there is no status. */
const CLASS_BY_CODE: Readonly<Record<string, ErrorClass>> = {
  no_specialist: NoSpecialist,
  replica_lost: ReplicaLost,
  replica_failed: ServerError,
  engine_failed: ServerError,
  cancelled: Cancelled,
  deadline: DeadlineExceeded,
  queue_full: Busy,
  shed: Busy,
  would_delay_others: Busy,
  deadline_unreachable: Busy,
  below_floor: Busy,
  draining: Unavailable,
  not_ready: Unavailable,
  no_replica: Unavailable,
  demoted: Unavailable,
  store_unavailable: Unavailable,
  quarantined: InvalidRequest,
};

const MAX_BODY_EXCERPT = 200;

/** The fields of an error envelope that could be read. */
interface Envelope {
  readonly message?: string;
  readonly code?: string;
  readonly param?: string;
  readonly limit?: string;
  readonly ticket?: string;
  readonly partial: string | null;
  readonly receipt: Receipt | null;
}

export function errorFromResponse(response: Response, body: string): OctetError {
  const envelope = parseEnvelope(body);
  const { status, headers } = response;
  const byStatus = CLASS_BY_STATUS[status] ?? (status >= 500 ? ServerError : InvalidRequest);
  const errorClass = CLASS_BY_CODE[envelope.code ?? ""] ?? byStatus;
  return new errorClass(envelope.message ?? describeBody(response, body), {
    ...detailsOf(envelope),
    status,
    requestId: headers.get("x-request-id"),
    retryAfterMs: retryAfterMs(headers, Date.now()),
    worthRetrying: headers.get("x-should-retry") !== "false",
  });
}

/** `received` is the text that the stream sent before the error. */
export function errorFromEvent(data: string, received: string, requestId: string | null): OctetError {
  const envelope = parseEnvelope(data);
  const errorClass = CLASS_BY_CODE[envelope.code ?? ""] ?? ServerError;
  const message = envelope.message ?? "the answer was cut off without an error message";
  const partial = received === "" ? envelope.partial : received;
  return new errorClass(message, { ...detailsOf(envelope), requestId, partial });
}

/** Accepts milliseconds, seconds or a date. */
export function retryAfterMs(headers: Headers, now: number): number | null {
  const ms = parseNumber(headers.get("retry-after-ms"));
  if (ms !== null) return ms;
  const after = headers.get("retry-after");
  const seconds = parseNumber(after);
  if (seconds !== null) return seconds * 1000;
  const date = Date.parse(after ?? "");
  return Number.isNaN(date) ? null : Math.max(0, date - now);
}

function parseNumber(text: string | null): number | null {
  return text !== null && /^\d+(\.\d+)?$/.test(text) ? Number(text) : null;
}

function detailsOf({ code, param, limit, ticket, partial, receipt }: Envelope): Details {
  const names = { code: code ?? "", field: param ?? null, limit: limit ?? null, ticket: ticket ?? null };
  return { ...names, partial, receipt };
}

function parseEnvelope(body: string): Envelope {
  let content: Record<string, unknown>;
  try {
    content = asRecord(JSON.parse(body));
  } catch {
    content = {};
  }
  const error = asRecord(content["error"]);
  return {
    ...pickStrings(error, ["message", "code", "param", "limit", "ticket"]),
    partial: partialOf(content["text"]) ?? partialOf(error["partial"]),
    receipt: (content["receipt"] as Receipt | undefined) ?? null,
  };
}

/** A text, or a list of choices, of which this client only ever requests one. */
function partialOf(value: unknown): string | null {
  const text: unknown = Array.isArray(value) ? asRecord(value[0])["text"] : value;
  return typeof text === "string" && text !== "" ? text : null;
}

function asRecord(value: unknown): Record<string, unknown> {
  return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {};
}

function pickStrings(from: Record<string, unknown>, names: readonly string[]): Record<string, string> {
  return Object.fromEntries(names.flatMap((name) => (typeof from[name] === "string" ? [[name, from[name]]] : [])));
}

/** For responses without an error envelope, as proxies send them. */
function describeBody(response: Response, body: string): string {
  const text = body
    .replace(/<[^>]*>/g, " ")
    .replace(/\s+/g, " ")
    .trim();
  const excerpt = text === "" ? "" : `: ${text.slice(0, MAX_BODY_EXCERPT)}`;
  return `the server answered ${response.status}${excerpt}`;
}

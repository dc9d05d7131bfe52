/** From a response, or the last event of a stream, to what a caller can act on. */

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

type Kind = new (message: string, details: Details) => OctetError;

const BY_STATUS: Readonly<Record<number, Kind>> = {
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

/** Where the word says more than the status, or where there is no status: in the middle of a stream. */
const BY_CODE: Readonly<Record<string, Kind>> = {
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

const MOST_WORDS = 200;

/** What the server said, as far as it can be read. */
interface Said {
  readonly message?: string;
  readonly code?: string;
  readonly param?: string;
  readonly limit?: string;
  readonly partial: string | null;
  readonly receipt: Receipt | null;
}

export function faultOf(response: Response, body: string): OctetError {
  const said = read(body);
  const { status, headers } = response;
  const kind = BY_CODE[said.code ?? ""] ?? BY_STATUS[status] ?? (status >= 500 ? ServerError : InvalidRequest);
  return new kind(said.message ?? unsaid(response, body), {
    ...detailsOf(said),
    status,
    requestId: headers.get("x-request-id"),
    retryAfterMs: retryAfterMs(headers, Date.now()),
    worthRetrying: headers.get("x-should-retry") !== "false",
  });
}

/** `heard` is what a stream had said until then. */
export function faultOfEvent(data: string, heard: string, requestId: string | null): OctetError {
  const said = read(data);
  const kind = BY_CODE[said.code ?? ""] ?? ServerError;
  const message = said.message ?? "the answer was cut off, and the server did not say why";
  return new kind(message, { ...detailsOf(said), requestId, partial: heard === "" ? said.partial : heard });
}

/** Milliseconds, or seconds, or a date. */
export function retryAfterMs(headers: Headers, now: number): number | null {
  const ms = number(headers.get("retry-after-ms"));
  if (ms !== null) return ms;
  const after = headers.get("retry-after");
  const seconds = number(after);
  if (seconds !== null) return seconds * 1000;
  const date = Date.parse(after ?? "");
  return Number.isNaN(date) ? null : Math.max(0, date - now);
}

function number(text: string | null): number | null {
  return text !== null && /^\d+(\.\d+)?$/.test(text) ? Number(text) : null;
}

function detailsOf(said: Said): Details {
  return {
    code: said.code ?? "",
    field: said.param ?? null,
    limit: said.limit ?? null,
    partial: said.partial,
    receipt: said.receipt,
  };
}

function read(body: string): Said {
  const whole = parsed(body);
  const error = record(whole["error"]);
  return {
    ...strings(error, ["message", "code", "param", "limit"]),
    partial: partialOf(whole["text"]) ?? partialOf(error["partial"]),
    receipt: (whole["receipt"] as Receipt | undefined) ?? null,
  };
}

/** A text, or the texts of several choices, of which this client only ever asks for one. */
function partialOf(value: unknown): string | null {
  const text: unknown = Array.isArray(value) ? record(value[0])["text"] : value;
  return typeof text === "string" && text !== "" ? text : null;
}

function parsed(body: string): Record<string, unknown> {
  try {
    return record(JSON.parse(body));
  } catch {
    return {};
  }
}

function record(value: unknown): Record<string, unknown> {
  return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {};
}

function strings(from: Record<string, unknown>, names: readonly string[]): Record<string, string> {
  return Object.fromEntries(names.flatMap((name) => (typeof from[name] === "string" ? [[name, from[name]]] : [])));
}

/** Something in between answered, which knows no envelope. */
function unsaid(response: Response, body: string): string {
  const words = body
    .replace(/<[^>]*>/g, " ")
    .replace(/\s+/g, " ")
    .trim();
  const shown = words === "" ? "" : `: ${words.slice(0, MOST_WORDS)}`;
  return `the server answered ${response.status}${shown}`;
}

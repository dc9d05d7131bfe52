/** Errors, one class for each way in which a caller would react. */

import type { Receipt } from "./receipt.js";

export interface Details {
  /** HTTP status; null if there was no response, or if a stream had already begun. */
  readonly status?: number | null;
  /** The server's error code, such as "queue_full". */
  readonly code?: string;
  /** The invalid field. */
  readonly field?: string | null;
  /** The limit that was violated. */
  readonly limit?: string | null;
  readonly retryAfterMs?: number | null;
  /** A place that is kept for the request from `retryAfterMs` on, if it is sent with the retry. */
  readonly ticket?: string | null;
  readonly requestId?: string | null;
  /** The part of the answer that was received before the error; null if there was none. */
  readonly partial?: string | null;
  readonly receipt?: Receipt | null;
  /** False if the server says that the same request would fail again. */
  readonly worthRetrying?: boolean;
  /** True if the request certainly did not reach a server. */
  readonly unsent?: boolean;
  readonly cause?: unknown;
}

/** A call failed; the message says why. */
export class OctetError extends Error {
  override readonly name: string = "OctetError";
  readonly status: number | null;
  readonly code: string;
  readonly field: string | null;
  readonly limit: string | null;
  /** Milliseconds after which a retry may succeed; null if unknown. */
  readonly retryAfterMs: number | null;
  /** A place that is kept for the request from `retryAfterMs` on. Retries send it by themselves; null if there is none. */
  readonly ticket: string | null;
  readonly requestId: string | null;
  readonly partial: string | null;
  readonly receipt: Receipt | null;
  readonly worthRetrying: boolean;
  readonly unsent: boolean;

  constructor(message: string, details: Details = {}) {
    super(message, details.cause === undefined ? undefined : { cause: details.cause });
    this.status = details.status ?? null;
    this.code = details.code ?? "";
    this.field = details.field ?? null;
    this.limit = details.limit ?? null;
    this.retryAfterMs = details.retryAfterMs ?? null;
    this.ticket = details.ticket ?? null;
    this.requestId = details.requestId ?? null;
    this.partial = details.partial ?? null;
    this.receipt = details.receipt ?? null;
    this.worthRetrying = details.worthRetrying ?? true;
    this.unsent = details.unsent ?? false;
  }
}

/** A field is wrong; `field` and `limit` say which one and why. */
export class InvalidRequest extends OctetError {
  override readonly name = "InvalidRequest";
}

/** The call carried no API key, or an unknown one. */
export class Unauthenticated extends OctetError {
  override readonly name = "Unauthenticated";
}

/** The API key does not permit this call. */
export class Forbidden extends OctetError {
  override readonly name = "Forbidden";
}

/** No such specialist, adapter, model, job or receipt. */
export class NotFound extends OctetError {
  override readonly name = "NotFound";
}

/** The request conflicts with an existing one: its idempotency key or its id is already in use. */
export class Conflict extends OctetError {
  override readonly name = "Conflict";
}

/** No specialist of the ensemble should answer this. */
export class NoSpecialist extends OctetError {
  override readonly name = "NoSpecialist";
}

/** There is no capacity at the moment; retry after `retryAfterMs`. */
export class Busy extends OctetError {
  override readonly name = "Busy";
}

/** The server cannot be reached, or no replica is ready to serve the request. */
export class Unavailable extends OctetError {
  override readonly name = "Unavailable";
}

/** The answer was cut off. `partial` holds the part that was received. */
export class ReplicaLost extends OctetError {
  override readonly name = "ReplicaLost";
}

/** The timeout has passed. */
export class DeadlineExceeded extends OctetError {
  override readonly name = "DeadlineExceeded";
}

/** The request was cancelled: by this caller, whose reason is the `cause`, or by request id. */
export class Cancelled extends OctetError {
  override readonly name = "Cancelled";
}

/** The server failed; its log has the details. */
export class ServerError extends OctetError {
  override readonly name = "ServerError";
}

/** The response is not one that an Octet server sends. */
export class ProtocolError extends OctetError {
  override readonly name = "ProtocolError";
}

/** For values that cannot be sent, so the server cannot check them. */
export function invalid(field: string, limit: string, got: string): InvalidRequest {
  return new InvalidRequest(`${field} must be ${limit}, got ${got}`, { code: "invalid_field", field, limit });
}

/** What can go wrong, one class for each thing that a caller would do about it. */

import type { Receipt } from "./receipt.js";

export interface Details {
  /** Of the response; null where there was none, or where a stream had begun. */
  readonly status?: number | null;
  /** The server's word for it, such as "queue_full". */
  readonly code?: string;
  /** The field to blame. */
  readonly field?: string | null;
  /** What would have been right. */
  readonly limit?: string | null;
  readonly retryAfterMs?: number | null;
  readonly requestId?: string | null;
  /** What had been said until then; null where nothing had. */
  readonly partial?: string | null;
  readonly receipt?: Receipt | null;
  /** False where the server says that the same request would only fail again. */
  readonly worthRetrying?: boolean;
  /** True where the request certainly never reached a server. */
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
  /** Milliseconds after which trying again is worthwhile; null where that is not known. */
  readonly retryAfterMs: number | null;
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
    this.requestId = details.requestId ?? null;
    this.partial = details.partial ?? null;
    this.receipt = details.receipt ?? null;
    this.worthRetrying = details.worthRetrying ?? true;
    this.unsent = details.unsent ?? false;
  }
}

/** Put right what `field` names. */
export class InvalidRequest extends OctetError {
  override readonly name = "InvalidRequest";
}

/** No key came with the call, or one that the server does not know. */
export class Unauthenticated extends OctetError {
  override readonly name = "Unauthenticated";
}

/** The key is known, and may not do this. */
export class Forbidden extends OctetError {
  override readonly name = "Forbidden";
}

/** No such specialist, adapter, model, job or receipt. */
export class NotFound extends OctetError {
  override readonly name = "NotFound";
}

/** It stands against something that is there already: a key that stands for another job, an id that is in use. */
export class Conflict extends OctetError {
  override readonly name = "Conflict";
}

/** Nobody in the ensemble should answer this. */
export class NoSpecialist extends OctetError {
  override readonly name = "NoSpecialist";
}

/** There is no room for it now; worth trying again after `retryAfterMs`. */
export class Busy extends OctetError {
  override readonly name = "Busy";
}

/** Nothing answers, or nothing that could serve this is ready. */
export class Unavailable extends OctetError {
  override readonly name = "Unavailable";
}

/** The answer was cut off. What came before stands, in `partial`; nothing more will come. */
export class ReplicaLost extends OctetError {
  override readonly name = "ReplicaLost";
}

/** The time given has passed. */
export class DeadlineExceeded extends OctetError {
  override readonly name = "DeadlineExceeded";
}

/** By this caller, whose reason is the `cause`, or by whoever else knows the request. */
export class Cancelled extends OctetError {
  override readonly name = "Cancelled";
}

/** Not your fault; the server's log says more. */
export class ServerError extends OctetError {
  override readonly name = "ServerError";
}

/** What came back is nothing that an Octet server says. */
export class ProtocolError extends OctetError {
  override readonly name = "ProtocolError";
}

/** What no request can carry, and the server therefore never sees. */
export function invalid(field: string, limit: string, got: string): InvalidRequest {
  return new InvalidRequest(`${field} must be ${limit}, got ${got}`, { code: "invalid_field", field, limit });
}

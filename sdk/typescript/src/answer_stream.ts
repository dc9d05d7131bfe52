/** Streamed answers. */

import { type Answer, AnswerBuilder, type AnswerEnd, type Chunk } from "./answer.js";
import { type CallOptions, type Caller, GRACE_MS } from "./caller.js";
import type { Deadline } from "./deadline.js";
import { errorFromEvent } from "./error_mapping.js";
import { OctetError, ProtocolError, ReplicaLost } from "./errors.js";
import type { Receipt } from "./receipt.js";
import type { ServerEvent } from "./sse.js";
import { type Call, parseEventData, readEvents } from "./transport.js";

/** Called when reading starts and when it ends. */
export interface StreamHooks {
  begin(): void;
  /** Null if the answer is incomplete. */
  end(answer: Answer | null): void;
}

/** The request is sent when reading starts. A stream can be read once; leaving the loop closes the connection. */
export class AnswerStream implements AsyncIterable<Chunk> {
  readonly #builder = new AnswerBuilder();
  #isTaken = false;
  #routed: Receipt | null = null;
  #end: AnswerEnd | null = null;
  #requestId: string | null = null;
  #deadline: Deadline | null = null;
  #isCancelled = false;

  /** `makeCall` receives the milliseconds that are left. */
  constructor(
    private readonly caller: Caller,
    private readonly makeCall: (leftMs: number) => Call,
    private readonly options: CallOptions,
    private readonly hooks?: StreamHooks,
  ) {}

  /** The text received so far. */
  get text(): string {
    return this.#builder.text;
  }

  /** Preliminary once a specialist has accepted the request, complete at the end. */
  get receipt(): Receipt | null {
    return this.#end?.receipt ?? this.#routed;
  }

  get requestId(): string | null {
    return this.#requestId;
  }

  /** Cancels the request in the engine; the reader gets Cancelled. */
  cancel(): void {
    this.#isCancelled = true;
    this.#deadline?.cancel();
  }

  /** Reads the stream unless that has been done, and returns the whole answer. Throws OctetError. */
  async answer(): Promise<Answer> {
    if (!this.#isTaken) for await (const _ of this) void _;
    if (this.#end === null) throw new ProtocolError("the stream was not read to its end", { code: "unread" });
    return this.#builder.build(this.#end);
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Chunk, void, undefined> {
    if (this.#isTaken) throw new ProtocolError("a stream can only be read once", { code: "already_read" });
    this.hooks?.begin();
    this.#isTaken = true;
    const deadline = this.caller.deadline(this.options, GRACE_MS);
    this.#deadline = deadline;
    if (this.#isCancelled) deadline.cancel();
    try {
      yield* this.#readWithRetries(deadline);
    } finally {
      deadline.end();
      this.hooks?.end(this.#end === null ? null : this.#builder.build(this.#end));
    }
  }

  /** Retries only until the first chunk. */
  async *#readWithRetries(deadline: Deadline): AsyncGenerator<Chunk, void, undefined> {
    const schedule = this.caller.retrySchedule(this.options, deadline);
    for (;;) {
      const call = this.makeCall(deadline.leftMs());
      try {
        yield* this.#attempt(schedule.withTicket(call), deadline);
        schedule.recordAnswer();
        return;
      } catch (error) {
        if (this.#end !== null) return;
        if (this.#builder.hasBegun) throw this.#withPartial(error);
        const wait = schedule.waitAfter(error, true, call.until);
        if (wait === null) throw error;
        await deadline.sleep(wait);
      }
    }
  }

  async *#attempt(call: Call, deadline: Deadline): AsyncGenerator<Chunk, void, undefined> {
    const response = await this.caller.transport.send(call, deadline);
    this.#requestId = response.headers.get("x-request-id");
    for await (const event of readEvents(response, deadline)) {
      const chunk = this.#end === null ? this.#handle(event) : null;
      if (chunk !== null) yield chunk;
    }
    if (this.#end !== null) return;
    throw new ReplicaLost("the stream ended before its receipt", { code: "cut_off", requestId: this.#requestId });
  }

  /** Throws OctetError for an error event. Unknown events are for newer clients and are ignored. */
  #handle(event: ServerEvent): Chunk | null {
    if (event.type === "routed") {
      this.#routed = parseEventData<{ receipt: Receipt }>(event).receipt;
    } else if (event.type === "chunk") {
      const chunk = parseEventData<Chunk>(event);
      this.#builder.add(chunk);
      return chunk;
    } else if (event.type === "receipt") {
      this.#end = parseEventData<AnswerEnd>(event);
    } else if (event.type === "error") {
      throw errorFromEvent(event.data, this.text, this.#requestId);
    }
    return null;
  }

  /** The same error, with the text received so far. */
  #withPartial(error: unknown): unknown {
    if (!(error instanceof OctetError) || error.partial !== null || this.text === "") return error;
    const errorClass = error.constructor as new (message: string, details: object) => OctetError;
    const { status, code, field, limit, retryAfterMs, ticket, receipt, worthRetrying, cause } = error;
    const details = { status, code, field, limit, retryAfterMs, ticket, receipt, worthRetrying, cause };
    return new errorClass(error.message, {
      ...details,
      requestId: error.requestId ?? this.#requestId,
      partial: this.text,
    });
  }
}

/** An answer as it comes. */

import type { Answer, Chunk, Usage } from "./answer.js";
import { type CallOptions, type Caller, GRACE_MS } from "./caller.js";
import type { Deadline } from "./deadline.js";
import { OctetError, ProtocolError, ReplicaLost } from "./errors.js";
import { faultOfEvent } from "./fault.js";
import type { Receipt, Validation } from "./receipt.js";
import { Said } from "./said.js";
import type { ServerEvent } from "./sse.js";
import { type Call, eventsOf } from "./transport.js";

/** The last event. */
interface Ending {
  readonly finish_reason: string;
  readonly validation?: Validation | null;
  readonly receipt: Receipt;
}

/** Whoever wants to know of it from the first read to the last. */
export interface Hooks {
  begin(): void;
  /** Null: it did not come whole. */
  end(answer: Answer | null): void;
}

/** Asked for when it is first read, and read once. Leaving the loop closes the connection. */
export class AnswerStream implements AsyncIterable<Chunk> {
  readonly #said = new Said();
  #taken = false;
  #routed: Receipt | null = null;
  #ending: Ending | null = null;
  #requestId: string | null = null;
  #deadline: Deadline | null = null;
  #cancelled = false;

  /** `make` gets the milliseconds that are left. */
  constructor(
    private readonly caller: Caller,
    private readonly make: (leftMs: number) => Call,
    private readonly options: CallOptions,
    private readonly hooks?: Hooks,
  ) {}

  /** All so far. */
  get text(): string {
    return this.#said.text;
  }

  /** As far as it is known: from the moment a specialist was found, whole at the end. */
  get receipt(): Receipt | null {
    return this.#ending?.receipt ?? this.#routed;
  }

  get requestId(): string | null {
    return this.#requestId;
  }

  /** Ends the engine's work; whoever reads gets Cancelled. */
  cancel(): void {
    this.#cancelled = true;
    this.#deadline?.cancel();
  }

  /** Reads what is left, and gives the whole. Throws OctetError. */
  async answer(): Promise<Answer> {
    if (!this.#taken) for await (const _ of this) void _;
    if (this.#ending === null) throw new ProtocolError("the stream was not read to its end", { code: "unread" });
    return this.#whole(this.#ending);
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Chunk, void, undefined> {
    if (this.#taken) throw new ProtocolError("a stream can be read once", { code: "already_read" });
    this.hooks?.begin();
    this.#taken = true;
    const deadline = this.caller.deadline(this.options, GRACE_MS);
    this.#deadline = deadline;
    if (this.#cancelled) deadline.cancel();
    try {
      yield* this.#persist(deadline);
    } finally {
      deadline.end();
      this.hooks?.end(this.#ending === null ? null : this.#whole(this.#ending));
    }
  }

  /** Asks again while nothing of an answer has come. */
  async *#persist(deadline: Deadline): AsyncGenerator<Chunk, void, undefined> {
    const effort = this.caller.effort(this.options, deadline);
    for (;;) {
      const call = this.make(deadline.leftMs());
      try {
        yield* this.#attempt(call, deadline);
        effort.answered();
        return;
      } catch (error) {
        if (this.#ending !== null) return;
        if (this.#said.begun) throw this.#told(error);
        const wait = effort.waitAfter(error, true, call.until);
        if (wait === null) throw error;
        await deadline.sleep(wait);
      }
    }
  }

  async *#attempt(call: Call, deadline: Deadline): AsyncGenerator<Chunk, void, undefined> {
    const response = await this.caller.transport.send(call, deadline);
    this.#requestId = response.headers.get("x-request-id");
    for await (const event of eventsOf(response, deadline)) {
      const chunk = this.#ending === null ? this.#hear(event) : null;
      if (chunk !== null) yield chunk;
    }
    if (this.#ending !== null) return;
    throw new ReplicaLost("the stream ended before its receipt", { code: "cut_off", requestId: this.#requestId });
  }

  /** Throws OctetError for the event of that name. Events of other names are for newer clients. */
  #hear(event: ServerEvent): Chunk | null {
    if (event.type === "routed") {
      this.#routed = parsed<{ receipt: Receipt }>(event).receipt;
    } else if (event.type === "chunk") {
      const chunk = parsed<Chunk>(event);
      this.#said.hear(chunk);
      return chunk;
    } else if (event.type === "receipt") {
      this.#ending = parsed<Ending>(event);
    } else if (event.type === "error") {
      throw faultOfEvent(event.data, this.#said.text, this.#requestId);
    }
    return null;
  }

  /** The same error, with what was said. */
  #told(error: unknown): unknown {
    const { text } = this.#said;
    if (!(error instanceof OctetError) || error.partial !== null || text === "") return error;
    return withPartial(error, text, this.#requestId);
  }

  #whole(ending: Ending): Answer {
    const { receipt } = ending;
    const { text, toolCalls, logprobs } = this.#said;
    return {
      id: receipt.request_id,
      text,
      finish_reason: ending.finish_reason,
      tool_calls: toolCalls,
      ...(logprobs.length > 0 ? { logprobs: [...logprobs] } : {}),
      partial: false,
      validation: ending.validation ?? null,
      specialist: receipt.specialist,
      usage: usageOf(receipt),
      receipt,
    };
  }
}

export function parsed<T>(event: ServerEvent): T {
  try {
    return JSON.parse(event.data) as T;
  } catch (cause) {
    throw new ProtocolError(`the event ${event.type} holds something else than JSON`, { code: "malformed", cause });
  }
}

function withPartial(error: OctetError, partial: string, requestId: string | null): OctetError {
  const kind = error.constructor as new (message: string, details: object) => OctetError;
  const { status, code, field, limit, retryAfterMs, receipt, worthRetrying, cause } = error;
  const details = { status, code, field, limit, retryAfterMs, receipt, worthRetrying, cause };
  return new kind(error.message, { ...details, requestId: error.requestId ?? requestId, partial });
}

function usageOf(receipt: Receipt): Usage {
  const { prompt_tokens = 0, completion_tokens = 0, cache_hit_tokens = 0 } = receipt.usage ?? {};
  return { prompt_tokens, completion_tokens, total_tokens: prompt_tokens + completion_tokens, cache_hit_tokens };
}

/** A conversation: every turn goes where the ones before are still in memory. */

import type { Answer } from "./answer.js";
import type { AnswerStream } from "./answer_stream.js";
import type { CallOptions } from "./caller.js";
import { Conflict } from "./errors.js";
import type { Inference } from "./inference.js";
import { randomName } from "./random.js";
import type { InferRequest, Message, Settings } from "./request.js";

export interface ChatOptions extends Settings {
  /** What the assistant is to know before the first turn. */
  readonly system?: string;
  /** A conversation to go on with. */
  readonly messages?: readonly Message[];
}

/** A text is what the user says; messages answer the assistant's tool calls. */
export type Turn = string | Message | readonly Message[];

/** A turn counts when its answer has come whole; one that fails leaves the conversation as it was. */
export class Chat {
  #messages: readonly Message[];
  #isTaken = false;
  readonly #settings: Settings;

  constructor(
    private readonly inference: Inference,
    options: ChatOptions,
  ) {
    const { system, messages = [], ...settings } = options;
    this.#messages = system === undefined ? [...messages] : [{ role: "system", content: system }, ...messages];
    this.#settings = { session_id: randomName(), ...settings };
  }

  get messages(): readonly Message[] {
    return this.#messages;
  }

  /** Throws OctetError; Conflict while another turn is being answered. */
  async say(turn: Turn, options: CallOptions = {}): Promise<Answer> {
    const messages = this.#take(turn);
    try {
      const answer = await this.inference.infer(this.#request(messages), options);
      this.#keep(messages, answer);
      return answer;
    } finally {
      this.#isTaken = false;
    }
  }

  /** The answer as it comes. Reading it throws OctetError; Conflict while another turn is being answered. */
  stream(turn: Turn, options: CallOptions = {}): AnswerStream {
    let messages: readonly Message[] = [];
    return this.inference.stream(() => this.#request(messages), options, {
      begin: () => {
        messages = this.#take(turn);
      },
      end: (answer) => {
        this.#isTaken = false;
        if (answer !== null) this.#keep(messages, answer);
      },
    });
  }

  #take(turn: Turn): readonly Message[] {
    if (this.#isTaken)
      throw new Conflict("one turn at a time: the one before is still being answered", { code: "taken" });
    this.#isTaken = true;
    return [...this.#messages, ...messagesOf(turn)];
  }

  #request(messages: readonly Message[]): InferRequest {
    return { ...this.#settings, messages: [...messages] };
  }

  #keep(messages: readonly Message[], answer: Answer): void {
    const calls = answer.tool_calls.length > 0 ? { tool_calls: answer.tool_calls } : {};
    this.#messages = [...messages, { role: "assistant", content: answer.text, ...calls }];
  }
}

function messagesOf(turn: Turn): readonly Message[] {
  if (typeof turn === "string") return [{ role: "user", content: turn }];
  return "role" in turn ? [turn] : turn;
}

/** Conversations. Each turn is routed to the replica that has the earlier turns cached. */

import type { Answer } from "./answer.js";
import type { AnswerStream } from "./answer_stream.js";
import { type CallOptions, randomId } from "./caller.js";
import { Conflict } from "./errors.js";
import type { Inference } from "./inference.js";
import type { InferRequest, Message, Settings } from "./request.js";

export interface ChatOptions extends Settings {
  /** The system message. */
  readonly system?: string;
  /** Messages of a conversation to continue. */
  readonly messages?: readonly Message[];
}

/** A string is a user message; messages may also answer the assistant's tool calls. */
export type Turn = string | Message | readonly Message[];

/** A turn is kept once its answer is complete. A turn that fails leaves the conversation unchanged. */
export class Chat {
  #messages: readonly Message[];
  #isBusy = false;
  readonly #settings: Settings;

  constructor(
    private readonly inference: Inference,
    options: ChatOptions,
  ) {
    const { system, messages = [], ...settings } = options;
    this.#messages = system === undefined ? [...messages] : [{ role: "system", content: system }, ...messages];
    this.#settings = { session_id: randomId(), ...settings };
  }

  get messages(): readonly Message[] {
    return this.#messages;
  }

  /** Throws OctetError; Conflict while another turn is being answered. */
  async say(turn: Turn, options: CallOptions = {}): Promise<Answer> {
    const messages = this.#beginTurn(turn);
    try {
      const answer = await this.inference.infer(this.#request(messages), options);
      this.#keep(messages, answer);
      return answer;
    } finally {
      this.#isBusy = false;
    }
  }

  /** Streams the answer. Reading it throws OctetError; Conflict while another turn is being answered. */
  stream(turn: Turn, options: CallOptions = {}): AnswerStream {
    let messages: readonly Message[] = [];
    return this.inference.stream(() => this.#request(messages), options, {
      begin: () => {
        messages = this.#beginTurn(turn);
      },
      end: (answer) => {
        this.#isBusy = false;
        if (answer !== null) this.#keep(messages, answer);
      },
    });
  }

  #beginTurn(turn: Turn): readonly Message[] {
    if (this.#isBusy) throw new Conflict("the previous turn is still being answered", { code: "taken" });
    this.#isBusy = true;
    return [...this.#messages, ...toMessages(turn)];
  }

  #request(messages: readonly Message[]): InferRequest {
    return { ...this.#settings, messages: [...messages] };
  }

  #keep(messages: readonly Message[], answer: Answer): void {
    const calls = answer.tool_calls.length > 0 ? { tool_calls: answer.tool_calls } : {};
    this.#messages = [...messages, { role: "assistant", content: answer.text, ...calls }];
  }
}

function toMessages(turn: Turn): readonly Message[] {
  if (typeof turn === "string") return [{ role: "user", content: turn }];
  return "role" in turn ? [turn] : turn;
}

// Server-sent events, read with fetch: EventSource cannot show a key.

import { open, refusal } from "./api.js";

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 15_000;
const SILENCE_MS = 15_000;
const LONGEST_EVENT = 32 << 20;

/** Events as they come: {name, data}. Comments and ids are passed over. */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let event = { name: "message", data: [] };
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + value).split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop();
      if (rest.length > LONGEST_EVENT) throw new Error("an event without end");
      for (const line of lines) {
        if (line === "") {
          if (event.data.length) yield { name: event.name, data: event.data.join("\n") };
          event = { name: "message", data: [] };
        } else if (line.startsWith("event:")) event.name = line.slice(6).trim();
        else if (line.startsWith("data:")) event.data.push(line.slice(5).replace(/^ /, ""));
      }
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

/** Keeps one stream open, for ever. `told` hears: opened(), event(name, content), lost(words, retryAtMs), refused(Refused). */
export class Stream {
  #told;
  #path;
  #abort = new AbortController();
  #failures = 0;
  #wake = () => undefined;
  #turn = 0;

  constructor(path, told) {
    this.#path = path;
    this.#told = told;
    globalThis.addEventListener("online", () => this.#wake());
    document.addEventListener("visibilitychange", () => document.hidden || this.#wake());
  }

  /** Anew, with whatever key there is now. */
  start() {
    this.#abort.abort();
    this.#failures = 0;
    this.#run(++this.#turn);
  }

  async #run(turn) {
    while (turn === this.#turn) {
      const words = await this.#once(turn);
      if (turn !== this.#turn || words === null) return;
      const wait = Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** this.#failures++) * (0.75 + Math.random() / 2);
      this.#told.lost(words, Date.now() + wait);
      await new Promise((wake) => {
        this.#wake = wake;
        setTimeout(wake, wait);
      });
    }
  }

  /** Why it ended; null where only a person can mend it. */
  async #once(turn) {
    this.#abort = new AbortController();
    let silence = setTimeout(() => this.#abort.abort(), SILENCE_MS);
    try {
      const response = await open(this.#path, { signal: this.#abort.signal, headers: { accept: "text/event-stream" } });
      if (response.status === 401 || response.status === 403) {
        if (turn === this.#turn) this.#told.refused(await refusal(response));
        return null;
      }
      if (!response.ok) return (await refusal(response)).message;
      this.#told.opened();
      for await (const { name, data } of events(response.body)) {
        if (turn !== this.#turn) return null;
        clearTimeout(silence);
        silence = setTimeout(() => this.#abort.abort(), SILENCE_MS);
        this.#failures = 0;
        this.#told.event(name, JSON.parse(data));
      }
      return "The router has ended the stream.";
    } catch (error) {
      if (error instanceof SyntaxError) return "The router said something that is no JSON.";
      return this.#abort.signal.aborted ? "The router has fallen silent." : "The router cannot be reached.";
    } finally {
      clearTimeout(silence);
      this.#abort.abort();
    }
  }
}

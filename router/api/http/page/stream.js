// Server-sent events, read with fetch because EventSource cannot send a key.

import { errorFrom, open } from "./api.js";

const FIRST_WAIT_MS = 500;
const MAX_WAIT_MS = 15_000;
const SILENCE_TIMEOUT_MS = 15_000;
const MAX_EVENT_CHARS = 32 << 20;

/** Yields events as {name, data}. Comments and ids are skipped. */
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
      if (rest.length > MAX_EVENT_CHARS) throw new Error("an event exceeds the limit");
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

/** Keeps one stream open. Calls the handlers opened(), event(name, content), lost(message, retryAtMs) and refused(ApiError). */
export class Stream {
  #handlers;
  #path;
  #abort = new AbortController();
  #failures = 0;
  #wake = () => undefined;
  #turn = 0;

  constructor(path, handlers) {
    this.#path = path;
    this.#handlers = handlers;
    globalThis.addEventListener("online", () => this.#wake());
    document.addEventListener("visibilitychange", () => document.hidden || this.#wake());
  }

  /** Restarts the stream with the current key. */
  start() {
    this.#abort.abort();
    this.#failures = 0;
    this.#run(++this.#turn);
  }

  async #run(turn) {
    while (turn === this.#turn) {
      const message = await this.#once(turn);
      if (turn !== this.#turn || message === null) return;
      const wait = Math.min(MAX_WAIT_MS, FIRST_WAIT_MS * 2 ** this.#failures++) * (0.75 + Math.random() / 2);
      this.#handlers.lost(message, Date.now() + wait);
      await new Promise((wake) => {
        this.#wake = wake;
        setTimeout(wake, wait);
      });
    }
  }

  /** Returns why the stream ended, or null if only the operator can resolve it. */
  async #once(turn) {
    this.#abort = new AbortController();
    let silence = setTimeout(() => this.#abort.abort(), SILENCE_TIMEOUT_MS);
    try {
      const response = await open(this.#path, { signal: this.#abort.signal, headers: { accept: "text/event-stream" } });
      if (response.status === 401 || response.status === 403) {
        if (turn === this.#turn) this.#handlers.refused(await errorFrom(response));
        return null;
      }
      if (!response.ok) return (await errorFrom(response)).message;
      this.#handlers.opened();
      for await (const { name, data } of events(response.body)) {
        if (turn !== this.#turn) return null;
        clearTimeout(silence);
        silence = setTimeout(() => this.#abort.abort(), SILENCE_TIMEOUT_MS);
        this.#failures = 0;
        this.#handlers.event(name, JSON.parse(data));
      }
      return "The router closed the stream.";
    } catch (error) {
      if (error instanceof SyntaxError) return "The router sent an event that is not JSON.";
      return this.#abort.signal.aborted ? "The router stopped sending." : "The router cannot be reached.";
    } finally {
      clearTimeout(silence);
      this.#abort.abort();
    }
  }
}

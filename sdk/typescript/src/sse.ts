/** Server-sent events, out of bytes that may be cut anywhere. */

import { ProtocolError } from "./errors.js";

export interface ServerEvent {
  readonly type: string;
  readonly data: string;
  /** The last id that was told, with this event or before it. */
  readonly id: string;
}

/** Of one event, in characters. */
export const MOST_CHARS = 16 * 1024 * 1024;

export class EventParser {
  readonly #decoder = new TextDecoder("utf-8", { fatal: true });
  readonly #most: number;
  /** The line that has not ended yet. */
  #line = "";
  /** A line has ended with a return: a newline right after it belongs to it. */
  #returned = false;
  #data: string[] = [];
  #size = 0;
  #type = "";
  #id = "";

  constructor(most: number = MOST_CHARS) {
    this.#most = most;
  }

  /** Every event that these bytes complete. Throws ProtocolError after those before the fault. */
  *push(bytes: Uint8Array): Generator<ServerEvent, void, undefined> {
    const text = this.#decode(bytes);
    let start = this.#start(text);
    for (let end = lineEnd(text, start); end >= 0; end = lineEnd(text, start)) {
      const event = this.#take(text.slice(start, end));
      start = end + 1;
      if (text[end] === "\r") {
        this.#returned = start === text.length;
        start += text[start] === "\n" ? 1 : 0;
      }
      if (event !== null) yield event;
    }
    this.#line += text.slice(start);
    this.#check(this.#line.length);
  }

  #decode(bytes: Uint8Array): string {
    try {
      return this.#decoder.decode(bytes, { stream: true });
    } catch (cause) {
      throw new ProtocolError("the event stream is not UTF-8", { code: "malformed", cause });
    }
  }

  #start(text: string): number {
    if (!this.#returned || text === "") return 0;
    this.#returned = false;
    return text[0] === "\n" ? 1 : 0;
  }

  #take(rest: string): ServerEvent | null {
    const line = this.#line + rest;
    this.#line = "";
    this.#check(line.length);
    if (line === "") return this.#dispatch();
    const colon = line.indexOf(":");
    if (colon !== 0) this.#field(...split(line, colon));
    return null;
  }

  #field(name: string, value: string): void {
    if (name === "data") {
      this.#data.push(value);
      this.#size += value.length + 1;
    } else if (name === "event") {
      this.#type = value;
    } else if (name === "id" && !value.includes("\0")) {
      this.#id = value;
    }
  }

  #dispatch(): ServerEvent | null {
    const event = { type: this.#type || "message", data: this.#data.join("\n"), id: this.#id };
    const isEmpty = this.#data.length === 0;
    this.#data = [];
    this.#size = 0;
    this.#type = "";
    return isEmpty ? null : event;
  }

  #check(lineLength: number): void {
    if (this.#size + lineLength <= this.#most) return;
    throw new ProtocolError(`an event must be at most ${this.#most} characters long`, {
      code: "too_large",
      limit: `at most ${this.#most} characters`,
    });
  }
}

function split(line: string, colon: number): [string, string] {
  if (colon < 0) return [line, ""];
  return [line.slice(0, colon), line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1)];
}

function lineEnd(text: string, start: number): number {
  for (let at = start; at < text.length; at++) {
    const unit = text.charCodeAt(at);
    if (unit === 10 || unit === 13) return at;
  }
  return -1;
}

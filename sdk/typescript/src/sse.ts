/** Parser for server-sent events, for bytes that may be split anywhere. */

import { ProtocolError } from "./errors.js";

export interface ServerEvent {
  readonly type: string;
  readonly data: string;
  /** The last id that was sent, with this event or an earlier one. */
  readonly id: string;
}

/** Maximum length of one event, in characters. */
export const MAX_EVENT_CHARS = 16 * 1024 * 1024;

export class EventParser {
  readonly #decoder = new TextDecoder("utf-8", { fatal: true });
  readonly #maxChars: number;
  /** The line that is still incomplete. */
  #line = "";
  /** The last line ended with a carriage return: a newline right after it belongs to it. */
  #endedWithReturn = false;
  #data: string[] = [];
  #size = 0;
  #type = "";
  #id = "";

  constructor(maxChars: number = MAX_EVENT_CHARS) {
    this.#maxChars = maxChars;
  }

  /** Yields every event that these bytes complete. Throws ProtocolError after the events before the error. */
  *push(bytes: Uint8Array): Generator<ServerEvent, void, undefined> {
    const text = this.#decode(bytes);
    let start = this.#lineStart(text);
    for (let end = lineEnd(text, start); end >= 0; end = lineEnd(text, start)) {
      const event = this.#endLine(text.slice(start, end));
      start = end + 1;
      if (text[end] === "\r") {
        this.#endedWithReturn = start === text.length;
        start += text[start] === "\n" ? 1 : 0;
      }
      if (event !== null) yield event;
    }
    this.#line += text.slice(start);
    this.#checkSize(this.#line.length);
  }

  #decode(bytes: Uint8Array): string {
    try {
      return this.#decoder.decode(bytes, { stream: true });
    } catch (cause) {
      throw new ProtocolError("the event stream is not UTF-8", { code: "malformed", cause });
    }
  }

  #lineStart(text: string): number {
    if (!this.#endedWithReturn || text === "") return 0;
    this.#endedWithReturn = false;
    return text[0] === "\n" ? 1 : 0;
  }

  #endLine(rest: string): ServerEvent | null {
    const line = this.#line + rest;
    this.#line = "";
    this.#checkSize(line.length);
    if (line === "") return this.#dispatch();
    const colon = line.indexOf(":");
    if (colon !== 0) this.#setField(...splitField(line, colon));
    return null;
  }

  #setField(name: string, value: string): void {
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

  #checkSize(lineLength: number): void {
    if (this.#size + lineLength <= this.#maxChars) return;
    throw new ProtocolError(`an event must be at most ${this.#maxChars} characters long`, {
      code: "too_large",
      limit: `at most ${this.#maxChars} characters`,
    });
  }
}

function splitField(line: string, colon: number): [string, string] {
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

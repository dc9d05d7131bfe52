/** The event parser, for bytes that are split anywhere. */

import assert from "node:assert/strict";
import { test } from "node:test";
import fc from "fast-check";
import { ProtocolError } from "../src/errors.js";
import { EventParser, type ServerEvent } from "../src/sse.js";

const ENDS = fc.constantFrom("\n", "\r", "\r\n");
const WORDS = fc.string({
  unit: fc.constantFrom("a", " ", ":", "ä", "€", "😀", "\u0000", "\ufeff", "é", "日"),
  maxLength: 12,
});
const LINES = fc.oneof(
  { weight: 3, arbitrary: WORDS.map((text) => `data: ${text}`) },
  WORDS.map((text) => `data:${text}`),
  WORDS.map((text) => `:${text}`),
  fc.nat(99).map((id) => `id: ${id}`),
  WORDS.map((text) => `id:${text}`),
  fc.constantFrom("event: chunk", "event:receipt", "event", "data", "id", "retry: 10", "other: x", "event: "),
  { weight: 3, arbitrary: fc.constant("") },
);
const STREAMS = fc
  .array(fc.tuple(LINES, ENDS), { maxLength: 30 })
  .map((lines) => lines.map(([line, end]) => line + end).join(""));

function bytes(text: string): Uint8Array {
  return new TextEncoder().encode(text);
}

function parse(parts: Iterable<Uint8Array>, most?: number): ServerEvent[] {
  const parser = new EventParser(most);
  return Array.from(parts).flatMap((part) => [...parser.push(part)]);
}

/** Splits at the given places, which may be within a character. */
function cut(whole: Uint8Array, places: readonly number[]): Uint8Array[] {
  const sorted = [0, ...places.map((place) => place % (whole.length + 1)).sort((a, b) => a - b), whole.length];
  return sorted.slice(1).map((end, index) => whole.subarray(sorted[index], end));
}

/** A literal implementation of the standard over the whole text. */
function naive(text: string): ServerEvent[] {
  const found: ServerEvent[] = [];
  let [data, type, id]: [string[], string, string] = [[], "", ""];
  const lines = text.replace(/^\ufeff/, "").split(/\r\n|\r|\n/);
  lines.pop();
  for (const line of lines) {
    if (line === "") {
      if (data.length > 0) found.push({ type: type || "message", data: data.join("\n"), id });
      [data, type] = [[], ""];
      continue;
    }
    const [, name = "", value = ""] = /^([^:]*)(?:: ?(.*))?$/su.exec(line) ?? [];
    if (name === "data") data.push(value);
    else if (name === "event") type = value;
    else if (name === "id" && !value.includes("\0")) id = value;
  }
  return found;
}

test("events do not depend on where the bytes are split", () => {
  fc.assert(
    fc.property(STREAMS, fc.array(fc.nat(2000), { maxLength: 20 }), (text, places) => {
      assert.deepEqual(parse(cut(bytes(text), places)), naive(text));
    }),
    { seed: 6, numRuns: 600 },
  );
});

test("single bytes and a byte order mark give the same events", () => {
  fc.assert(
    fc.property(STREAMS, fc.boolean(), (text, marked) => {
      const whole = bytes((marked ? "\ufeff" : "") + text);
      assert.deepEqual(parse(Array.from(whole, (byte) => Uint8Array.of(byte))), naive(text.replace(/^\ufeff/, "")));
    }),
    { seed: 7, numRuns: 200 },
  );
});

test("an oversized event is refused wherever it is split, after the events before it", () => {
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 40 }), fc.array(fc.nat(200), { maxLength: 8 }), (over, places) => {
      const parser = new EventParser(30);
      const chunks: string[] = [];
      const whole = bytes(`data: small\n\ndata: ${"x".repeat(24 + over)}\n\n`);
      assert.throws(() => {
        for (const part of cut(whole, places)) for (const event of parser.push(part)) chunks.push(event.data);
      }, ProtocolError);
      assert.deepEqual(chunks, ["small"]);
    }),
    { seed: 8, numRuns: 200 },
  );
  assert.equal(parse([bytes(`data: ${"x".repeat(24)}\n\n`)], 30).length, 1);
});

test("the size limit applies to all lines of an event together", () => {
  const endless = bytes("data:\n".repeat(40));
  assert.throws(() => parse([endless], 30), { name: "ProtocolError", code: "too_large" });
});

test("invalid UTF-8 is refused, not replaced", () => {
  assert.throws(() => parse([Uint8Array.of(100, 97, 116, 97, 58, 0xff, 10, 10)]), { name: "ProtocolError" });
});

test("an unterminated event is dropped", () => {
  assert.deepEqual(parse([bytes("data: half\n")]), []);
});

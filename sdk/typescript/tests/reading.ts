/** What a call said, and what it threw. */

import type { OctetError } from "../src/index.js";

export async function textOf(stream: AsyncIterable<{ text: string }>, heard: string[] = []): Promise<string> {
  for await (const chunk of stream) heard.push(chunk.text);
  return heard.join("");
}

export async function caught(work: Promise<unknown>): Promise<OctetError> {
  try {
    await work;
  } catch (error) {
    return error as OctetError;
  }
  throw new Error("nothing was thrown");
}

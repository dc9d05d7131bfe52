/** Helpers that read a stream or catch an error. */

import type { OctetError } from "../src/index.js";

export async function textOf(stream: AsyncIterable<{ text: string }>, chunks: string[] = []): Promise<string> {
  for await (const chunk of stream) chunks.push(chunk.text);
  return chunks.join("");
}

export async function errorOf(work: Promise<unknown>): Promise<OctetError> {
  try {
    await work;
  } catch (error) {
    return error as OctetError;
  }
  throw new Error("nothing was thrown");
}

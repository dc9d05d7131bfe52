/** OpenAI's unmodified package against a router. */

import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI, { APIUserAbortError, BadRequestError, InternalServerError, NotFoundError, RateLimitError } from "openai";
import { Octet } from "../../src/index.js";
import { URL_OF_ROUTER, cancelled } from "./router.js";

const openai = new OpenAI({ baseURL: `${URL_OF_ROUTER}/v1`, apiKey: "none", maxRetries: 0 });
const octet = new Octet({ baseUrl: URL_OF_ROUTER });
const messages = [{ role: "user" as const, content: "hello" }];

async function errorOf<T>(work: Promise<unknown>, kind: new (...given: never[]) => T): Promise<T> {
  try {
    await work;
  } catch (error) {
    assert.ok(error instanceof kind, String(error));
    return error;
  }
  throw new Error("nothing was thrown");
}

test("lists the models", async () => {
  const ids = (await openai.models.list()).data.map((model) => model.id);
  assert.ok(ids.includes("octet") && ids.includes("octet/writer"), String(ids));
});

test("chat gives the same text whole and streamed", async () => {
  const asked = { model: "octet/writer", messages, max_tokens: 8, seed: 6 };
  const { data: whole, response } = await openai.chat.completions.create(asked).withResponse();
  const [choice] = whole.choices;
  assert.ok(choice?.message.content);
  assert.deepEqual([choice.finish_reason, whole.usage?.completion_tokens, whole.model], ["length", 8, "octet/writer"]);
  assert.equal((await octet.receipts.get(whole.id)).request_id, response.headers.get("x-request-id"));

  const stream = await openai.chat.completions.create({
    ...asked,
    stream: true,
    stream_options: { include_usage: true },
  });
  let text = "";
  let last = null;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta.content ?? "";
    last = chunk;
  }
  assert.equal(text, choice.message.content);
  assert.deepEqual([last?.choices, last?.usage?.completion_tokens], [[], 8]);
});

test("the stream helper assembles the answer", async () => {
  const runner = openai.chat.completions.stream({ model: "octet/writer", messages, max_tokens: 8 });
  const { choices } = await runner.finalChatCompletion();
  assert.deepEqual([choices.length, choices[0]?.finish_reason], [1, "length"]);
});

test("structured output is valid, whole and through the parsing helper", async () => {
  const schema = {
    type: "object",
    properties: { size: { type: "integer", minimum: 0, maximum: 99 }, kind: { enum: ["a", "b"] } },
    required: ["size", "kind"],
    additionalProperties: false,
  };
  const format = { type: "json_schema" as const, json_schema: { name: "it", schema, strict: true } };
  const asked = { model: "octet/writer", messages, max_tokens: 300, seed: 2, response_format: format };
  const parsed = (await openai.chat.completions.parse(asked)).choices[0]?.message.parsed as unknown as {
    size: number;
    kind: string;
  };
  assert.ok(Number.isInteger(parsed.size) && ["a", "b"].includes(parsed.kind), JSON.stringify(parsed));
  const streamed = await openai.chat.completions.stream(asked).finalChatCompletion();
  assert.deepEqual(JSON.parse(streamed.choices[0]?.message.content ?? ""), parsed);
});

test("plain completions", async () => {
  const { choices } = await openai.completions.create({ model: "octet/writer", prompt: "hello", max_tokens: 4 });
  assert.ok(choices[0]?.text);
});

test("errors have the package's classes, with field and code", async () => {
  const wrong = await errorOf(
    openai.chat.completions.create({ model: "octet", messages, max_tokens: 0 }),
    BadRequestError,
  );
  assert.deepEqual([wrong.status, wrong.param, wrong.code], [400, "max_tokens", "invalid_field"]);
  const nobody = await errorOf(openai.chat.completions.create({ model: "octet/nobody", messages }), NotFoundError);
  assert.equal(nobody.code, "model_not_found");
});

test("a full queue is a RateLimitError with a retry-after, and is retried", async () => {
  const full = await errorOf(openai.chat.completions.create({ model: "octet/full", messages }), RateLimitError);
  assert.equal(full.code, "queue_full");
  assert.deepEqual([full.headers?.get("retry-after"), full.headers?.get("retry-after-ms")], ["1", "80"]);
  const started = performance.now();
  const patient = openai.withOptions({ maxRetries: 2 });
  const { choices } = await patient.chat.completions.create({ model: "octet/busy", messages });
  assert.equal(choices[0]?.message.content, "x");
  assert.ok(performance.now() - started >= 160);
});

test("a timeout is not retried and carries the partial text", async () => {
  const extra = { octet: { timeout_ms: 1000 } };
  const asked = { model: "octet/late", messages, ...extra };
  const late = await errorOf(openai.withOptions({ maxRetries: 2 }).chat.completions.create(asked), InternalServerError);
  assert.equal(late.status, 504);
  assert.deepEqual((late.error as { partial: unknown }).partial, [{ index: 0, text: "so far" }]);
});

test("aborting stops the engine", async () => {
  const controller = new AbortController();
  const asked = { model: "octet/slow", messages, max_tokens: 300, stream: true as const };
  const { data: stream, response } = await openai.chat.completions
    .create(asked, { signal: controller.signal })
    .withResponse();
  let chunks = 0;
  try {
    for await (const _ of stream) if ((chunks += 1) === 3) controller.abort();
  } catch (error) {
    assert.ok(error instanceof APIUserAbortError, String(error));
  }
  await cancelled(octet, response.headers.get("x-request-id"));
});

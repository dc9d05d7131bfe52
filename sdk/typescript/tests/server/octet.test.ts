/** The SDK against a router. */

import assert from "node:assert/strict";
import { test } from "node:test";
import {
  Busy,
  Cancelled,
  DeadlineExceeded,
  type Decision,
  InvalidRequest,
  NotFound,
  Octet,
  type Receipt,
} from "../../src/index.js";
import { errorOf, textOf } from "../helpers.js";
import { URL_OF_ROUTER, cancelled } from "./router.js";

const octet = new Octet({ baseUrl: URL_OF_ROUTER });
/** `seed` makes the answer the same each time. */
const WRITER = { prompt: "hello", force_specialists: ["writer"], max_tokens: 8, seed: 6 };

function to(specialist: string): { prompt: string; force_specialists: string[] } {
  return { prompt: "hello", force_specialists: [specialist] };
}

/** All fields of the type, by name. */
const RECEIPT = {
  request_id: true,
  decision: true,
  specialist: true,
  experts_used: true,
  replica: true,
  lane: true,
  attempts: true,
  admission: true,
  usage: true,
  timings: true,
  error: true,
  breaker: true,
  trace_id: true,
  span_id: true,
  created_unix_ms: true,
  priority: true,
  session_id: true,
  session_source: true,
  between: true,
  validation: true,
  caller: true,
  tenant: true,
} satisfies Record<keyof Receipt, true>;
const DECISION = {
  source: true,
  decided_by: true,
  why: true,
  primary: true,
  second_choice: true,
  distribution: true,
  confidence: true,
  intent: true,
  task: true,
  adapters: true,
  sampling: true,
  max_tokens: true,
  max_tokens_from: true,
  notes: true,
  request_digest: true,
  config_digest: true,
  classifier_digest: true,
} satisfies Record<keyof Decision, true>;

test("models", async () => {
  assert.ok((await octet.models.list()).some((model) => model.id === "octet/writer"));
  assert.equal((await octet.models.get("octet/writer")).object, "model");
  const error = await errorOf(octet.models.get("octet/nobody"));
  assert.ok(error instanceof NotFound && error.code === "model_not_found");
});

test("whole and streamed answers are the same, and their receipts are stored", async () => {
  const whole = await octet.infer(WRITER);
  assert.deepEqual([whole.finish_reason, whole.partial, whole.specialist], ["length", false, "writer"]);
  assert.equal(whole.usage.completion_tokens, 8);
  const stream = octet.stream(WRITER);
  const chunks: string[] = [];
  assert.equal(await textOf(stream, chunks), whole.text);
  assert.ok(chunks.length > 1);
  const streamed = await stream.answer();
  assert.deepEqual([streamed.finish_reason, streamed.text], ["length", whole.text]);
  assert.deepEqual(streamed.usage.completion_tokens, 8);
  assert.equal(streamed.id, stream.requestId);
  for (const answer of [whole, streamed]) {
    const receipt = await octet.receipts.get(answer.id);
    assert.equal(receipt.request_id, answer.id);
    assert.deepEqual(Object.keys(answer.receipt).sort(), Object.keys(RECEIPT).sort());
    assert.deepEqual(Object.keys(answer.receipt.decision).sort(), Object.keys(DECISION).sort());
  }
});

test("an invalid field is named with its limit", async () => {
  const error = await errorOf(octet.infer({ ...WRITER, max_tokens: 0 }));
  assert.ok(error instanceof InvalidRequest);
  assert.equal(error.field, "max_tokens");
  assert.match(error.limit ?? "", /^in \[1, /);
  assert.ok(error.requestId);
  const misspelt = await errorOf(octet.infer({ ...WRITER, max_token: 3 } as typeof WRITER));
  assert.ok(misspelt instanceof InvalidRequest && misspelt.field === "max_token");
  assert.ok((await errorOf(octet.infer(to("nobody")))) instanceof NotFound);
});

test("answers have the requested structure and carry the validation result", async () => {
  const schema = {
    type: "object",
    properties: { kind: { enum: ["a", "b"] } },
    required: ["kind"],
    additionalProperties: false,
  };
  const asked = { ...WRITER, max_tokens: 300 };
  const shaped = await octet.infer({ ...asked, structure: { json_schema: schema }, validate: true });
  assert.ok(["a", "b"].includes((JSON.parse(shaped.text) as { kind: string }).kind));
  assert.equal(shaped.validation?.outcome, "passed");
  assert.match((await octet.infer({ ...asked, structure: { regex: "[a-c]{4}" } })).text, /^[a-c]{4}$/);
  const stream = octet.stream({ ...asked, structure: { choice: ["yes", "no"] }, validate: true });
  assert.ok(["yes", "no"].includes(await textOf(stream)));
  assert.equal((await stream.answer()).validation?.outcome, "passed");
  assert.ok((await octet.infer({ ...asked, structure: { json_object: true } })).text.startsWith("{"));
});

test("a full queue is reported with a retry-after, and retried", async () => {
  const full = await errorOf(octet.infer(to("full"), { maxRetries: 0 }));
  assert.ok(full instanceof Busy);
  assert.deepEqual([full.code, full.retryAfterMs], ["queue_full", 80]);
  const started = performance.now();
  assert.equal((await octet.infer(to("busy"))).text, "x");
  assert.equal(await textOf(octet.stream(to("busy"))), "x");
  assert.ok(performance.now() - started >= 320);
});

test("a timeout carries the partial text, whole and streamed, with the receipt", async () => {
  const whole = await errorOf(octet.infer(to("late"), { timeoutMs: 1000 }));
  assert.ok(whole instanceof DeadlineExceeded);
  assert.deepEqual([whole.status, whole.partial, whole.receipt?.specialist], [504, "so far", "late"]);
  const streamed = await errorOf(textOf(octet.stream(to("late"), { timeoutMs: 1000 })));
  assert.ok(streamed instanceof DeadlineExceeded);
  assert.equal(streamed.partial, "so far");
});

test("an answer that is cut off is not retried", async () => {
  const chunks: string[] = [];
  const error = await errorOf(textOf(octet.stream(to("lost")), chunks));
  assert.deepEqual([error.name, error.code], ["ServerError", "replica_failed"]);
  assert.deepEqual([error.partial, chunks], ["so far", ["so far"]]);
});

test("aborting, leaving the loop and cancelling stop the engine", async () => {
  const slow = { ...to("slow"), max_tokens: 300 };
  const controller = new AbortController();
  const aborted = octet.stream(slow, { signal: controller.signal });
  const thrown = await errorOf(
    (async () => {
      for await (const _ of aborted) controller.abort();
    })(),
  );
  assert.ok(thrown instanceof Cancelled);
  await cancelled(octet, aborted.requestId);
  const left = octet.stream(slow);
  for await (const _ of left) break;
  await cancelled(octet, left.requestId);
  const ended = octet.stream(slow);
  setTimeout(() => ended.cancel(), 200);
  assert.ok((await errorOf(textOf(ended))) instanceof Cancelled);
  await cancelled(octet, ended.requestId);
});

test("a conversation keeps its session and its messages", async () => {
  const chat = octet.chat({ force_specialists: ["writer"], max_tokens: 4, system: "Be short." });
  const first = await chat.say("hello");
  const stream = chat.stream("and more?");
  await textOf(stream);
  const second = await stream.answer();
  assert.equal(chat.messages.length, 5);
  assert.equal(first.receipt.session_id, second.receipt.session_id);
  assert.deepEqual(
    [second.receipt.session_source, second.usage.prompt_tokens > first.usage.prompt_tokens],
    ["session_id", true],
  );
});

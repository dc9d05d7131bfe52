/** Jobs against a router. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { Conflict, InvalidRequest, type Job, NotFound, Octet, hasEnded } from "../../src/index.js";
import { errorOf } from "../helpers.js";
import { URL_OF_ROUTER } from "./router.js";

const octet = new Octet({ baseUrl: URL_OF_ROUTER });
const WRITER = { prompt: "hello", force_specialists: ["writer"], max_tokens: 8, seed: 6 };

/** All fields of the type, by name. */
const JOB = {
  id: true,
  status: true,
  submitted_at: true,
  started_at: true,
  ended_at: true,
  text: true,
  tool_calls: true,
  partial: true,
  error: true,
  finish_reason: true,
  validation: true,
  receipt: true,
  attempts: true,
  estimated_wait_ms: true,
} satisfies Record<keyof Job, true>;

test("a job runs to its end and gives the same text as infer", async () => {
  const submitted = await octet.jobs.submit(WRITER);
  assert.deepEqual(Object.keys(submitted).sort(), Object.keys(JOB).sort());
  let text = "";
  const seen: string[] = [];
  const numbers: number[] = [];
  for await (const event of octet.jobs.events(submitted.id)) {
    numbers.push(event.number);
    if (event.type === "status") seen.push(event.job.status);
    if (event.type === "chunk") text += event.chunk.text;
  }
  assert.deepEqual(seen, ["queued", "running", "done"]);
  assert.deepEqual(
    numbers,
    [...numbers.keys()].map((index) => index + 1),
  );
  const done = await octet.jobs.wait(submitted.id);
  assert.deepEqual([done.status, done.text, done.finish_reason, done.partial], ["done", text, "length", false]);
  assert.deepEqual(await octet.jobs.get(submitted.id), done);
  assert.equal((await octet.infer(WRITER)).text, text);
  assert.ok(hasEnded(done) && Date.parse(done.submitted_at) <= Date.parse(done.ended_at ?? ""));
});

test("the same idempotency key is the same job, and another request conflicts", async () => {
  const idempotencyKey = "once";
  const first = await octet.jobs.submit(WRITER, { idempotencyKey });
  assert.equal((await octet.jobs.submit(WRITER, { idempotencyKey })).id, first.id);
  assert.ok((await errorOf(octet.jobs.submit("something else", { idempotencyKey }))) instanceof Conflict);
  await octet.jobs.wait(first.id);
});

test("jobs are listed newest first, in pages", async () => {
  const made = [];
  for (let count = 0; count < 3; count++) made.unshift((await octet.jobs.submit(WRITER)).id);
  const newest = (await octet.jobs.list({ limit: 2 })).map((job) => job.id);
  assert.deepEqual(newest, made.slice(0, 2));
  const [next] = await octet.jobs.list({ limit: 1, before: newest[1]! });
  assert.equal(next?.id, made[2]);
  for (const id of made) await octet.jobs.wait(id);
});

test("a cancelled job keeps its partial text", async () => {
  const { id } = await octet.jobs.submit({ prompt: "hello", force_specialists: ["slow"], max_tokens: 300 });
  for await (const event of octet.jobs.events(id)) if (event.type === "chunk") break;
  await octet.jobs.cancel(id);
  const job = await octet.jobs.wait(id);
  assert.deepEqual([job.status, job.partial], ["cancelled", true]);
  assert.ok(job.text);
});

test("invalid submissions are refused at once; later failures are in the job", async () => {
  const wrong = await errorOf(octet.jobs.submit({ ...WRITER, max_tokens: 0 }));
  assert.ok(wrong instanceof InvalidRequest && wrong.field === "max_tokens");
  const late = await octet.jobs.submit({ prompt: "hello", force_specialists: ["late"], timeout_ms: 1000 });
  const failed = await octet.jobs.wait(late.id);
  assert.deepEqual(
    [failed.status, failed.error?.code, failed.text, failed.partial],
    ["failed", "deadline", "so far", true],
  );
  assert.ok((await errorOf(octet.jobs.get("nobody"))) instanceof NotFound);
  assert.ok((await errorOf(octet.jobs.wait("nobody"))) instanceof NotFound);
});

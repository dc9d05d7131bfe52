/** Cancellation and timeouts. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { Busy, Cancelled, type Chunk, DeadlineExceeded, Octet } from "../src/index.js";
import { Fake, events, fault, hang, chunk } from "./fake.js";
import { errorOf, textOf } from "./helpers.js";

const SILENT = events([chunk("so far")], "silence");

/** Calls `then` for every chunk. */
async function onEachChunk(stream: AsyncIterable<Chunk>, then: () => void): Promise<void> {
  for await (const _ of stream) then();
}

test("aborting closes the connection of a whole answer and keeps the reason", async () => {
  await Fake.serve([hang], async (octet, fake) => {
    const controller = new AbortController();
    const failing = errorOf(octet.infer("x", { signal: controller.signal }));
    await fake.called(1);
    controller.abort("enough");
    const error = await failing;
    assert.ok(error instanceof Cancelled && error.cause === "enough" && error.partial === null);
    await fake.requests[0]!.gone;
  });
});

test("aborting closes the connection of a stream and keeps the partial text", async () => {
  await Fake.serve([SILENT], async (octet, fake) => {
    const controller = new AbortController();
    const stream = octet.stream("x", { signal: controller.signal });
    const error = await errorOf(onEachChunk(stream, () => controller.abort("enough")));
    assert.ok(error instanceof Cancelled && error.cause === "enough" && error.partial === "so far");
    await fake.requests[0]!.gone;
  });
});

test("leaving the loop, and cancel(), close the connection", async () => {
  await Fake.serve([SILENT, SILENT], async (octet, fake) => {
    for await (const chunk of octet.stream("x")) {
      assert.equal(chunk.text, "so far");
      break;
    }
    await fake.requests[0]!.gone;
    const stream = octet.stream("x");
    assert.ok((await errorOf(onEachChunk(stream, () => stream.cancel()))) instanceof Cancelled);
    await fake.requests[1]!.gone;
  });
});

test("an aborted signal, or a stream cancelled before it is read, sends nothing", async () => {
  await Fake.serve([], async (octet, fake) => {
    assert.ok((await errorOf(octet.infer("x", { signal: AbortSignal.abort() }))) instanceof Cancelled);
    const stream = octet.stream("x");
    stream.cancel();
    assert.ok((await errorOf(textOf(stream))) instanceof Cancelled);
    assert.equal(fake.requests.length, 0);
  });
});

test("aborting ends the wait for a retry", async () => {
  await Fake.serve([fault(429, "queue_full", { "retry-after": "30" })], async (octet, fake) => {
    const controller = new AbortController();
    const failing = errorOf(octet.infer("x", { signal: controller.signal }));
    await fake.called(1);
    await fake.requests[0]!.gone;
    setTimeout(() => controller.abort(), 50);
    assert.ok((await failing) instanceof Cancelled);
  });
});

test("a silent server times out", async () => {
  await Fake.serve([hang, SILENT], async (octet, fake) => {
    const whole = await errorOf(octet.infer("x", { timeoutMs: 500 }));
    assert.ok(whole instanceof DeadlineExceeded && whole.status === null);
    const streamed = await errorOf(textOf(octet.stream("x", { timeoutMs: 3_000 })));
    assert.ok(streamed instanceof DeadlineExceeded && streamed.partial === "so far");
    await Promise.all(fake.requests.map((each) => each.gone));
  });
});

test("a refusal is thrown if its retry-after exceeds the time left", async () => {
  await Fake.serve([fault(429, "queue_full", { "retry-after-ms": "20000" })], async (octet) => {
    const error = await errorOf(octet.infer("x", { timeoutMs: 10_000 }));
    assert.ok(error instanceof Busy && error.retryAfterMs === 20_000);
  });
});

test("an invalid timeout is refused by field name", async () => {
  for (const timeoutMs of [0, -1, NaN, Infinity, 2 ** 31]) {
    assert.equal((await errorOf(new Octet().infer("x", { timeoutMs }))).field, "timeoutMs");
  }
});

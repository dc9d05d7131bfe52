/** How a call ends that its caller does not wait for. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { Busy, Cancelled, type Chunk, DeadlineExceeded, Octet } from "../src/index.js";
import { Fake, events, fault, hang, said } from "./fake.js";
import { caught, textOf } from "./reading.js";

const SILENT = events([said("so far")], "silence");

/** Calls `then` when something has been said. */
async function heard(stream: AsyncIterable<Chunk>, then: () => void): Promise<void> {
  for await (const _ of stream) then();
}

test("aborting closes the connection of a whole answer, and keeps the reason", async () => {
  await Fake.telling([hang], async (octet, fake) => {
    const controller = new AbortController();
    const failing = caught(octet.infer("x", { signal: controller.signal }));
    await fake.called(1);
    controller.abort("enough");
    const error = await failing;
    assert.ok(error instanceof Cancelled && error.cause === "enough" && error.partial === null);
    await fake.heard[0]!.gone;
  });
});

test("aborting closes the connection of a stream, and keeps what was said", async () => {
  await Fake.telling([SILENT], async (octet, fake) => {
    const controller = new AbortController();
    const stream = octet.stream("x", { signal: controller.signal });
    const error = await caught(heard(stream, () => controller.abort("enough")));
    assert.ok(error instanceof Cancelled && error.cause === "enough" && error.partial === "so far");
    await fake.heard[0]!.gone;
  });
});

test("leaving the loop, and cancel(), close the connection", async () => {
  await Fake.telling([SILENT, SILENT], async (octet, fake) => {
    for await (const chunk of octet.stream("x")) {
      assert.equal(chunk.text, "so far");
      break;
    }
    await fake.heard[0]!.gone;
    const stream = octet.stream("x");
    assert.ok((await caught(heard(stream, () => stream.cancel()))) instanceof Cancelled);
    await fake.heard[1]!.gone;
  });
});

test("an aborted signal, or a stream cancelled before it is read, sends nothing", async () => {
  await Fake.telling([], async (octet, fake) => {
    assert.ok((await caught(octet.infer("x", { signal: AbortSignal.abort() }))) instanceof Cancelled);
    const stream = octet.stream("x");
    stream.cancel();
    assert.ok((await caught(textOf(stream))) instanceof Cancelled);
    assert.equal(fake.heard.length, 0);
  });
});

test("aborting ends the wait for a retry", async () => {
  await Fake.telling([fault(429, "queue_full", { "retry-after": "30" })], async (octet, fake) => {
    const controller = new AbortController();
    const failing = caught(octet.infer("x", { signal: controller.signal }));
    await fake.called(1);
    await fake.heard[0]!.gone;
    setTimeout(() => controller.abort(), 50);
    assert.ok((await failing) instanceof Cancelled);
  });
});

test("a server that says nothing is not waited for longer than was said", async () => {
  await Fake.telling([hang, SILENT], async (octet, fake) => {
    const whole = await caught(octet.infer("x", { timeoutMs: 500 }));
    assert.ok(whole instanceof DeadlineExceeded && whole.status === null);
    const streamed = await caught(textOf(octet.stream("x", { timeoutMs: 500 })));
    assert.ok(streamed instanceof DeadlineExceeded && streamed.partial === "so far");
    await Promise.all(fake.heard.map((each) => each.gone));
  });
});

test("a wait longer than the time that is left is not waited: the refusal is thrown", async () => {
  await Fake.telling([fault(429, "queue_full", { "retry-after-ms": "20000" })], async (octet) => {
    const error = await caught(octet.infer("x", { timeoutMs: 10_000 }));
    assert.ok(error instanceof Busy && error.retryAfterMs === 20_000);
  });
});

test("a time of nonsense is refused by name", async () => {
  for (const timeoutMs of [0, -1, NaN, Infinity, 2 ** 31]) {
    assert.equal((await caught(new Octet().infer("x", { timeoutMs }))).field, "timeoutMs");
  }
});

/** Jobs across router restarts and lost connections. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { Cancelled, DeadlineExceeded, type Job, type JobEvent, NotFound, ReplicaLost } from "../src/index.js";
import { Fake, type Step, cut, event, events, fault, json, chunk } from "./fake.js";

function job(status: Job["status"], text = ""): Job {
  return {
    id: "j1",
    status,
    submitted_at: "2026-01-01T00:00:00Z",
    started_at: null,
    ended_at: null,
    text,
    tool_calls: [],
    partial: false,
    error: null,
    finish_reason: null,
    validation: null,
    receipt: null,
    attempts: 1,
    estimated_wait_ms: null,
  };
}

function status(number: number, now: Job["status"], text = ""): string {
  return event("status", job(now, text), number);
}

/** An event in short form. */
function word(event: JobEvent): string {
  if (event.type === "status") return `${event.number}:${event.job.status}`;
  return event.type === "chunk" ? `${event.number}:${event.chunk.text}` : `${event.number}:restarted ${event.attempt}`;
}

async function words(watched: AsyncIterable<JobEvent>): Promise<string[]> {
  const chunks: string[] = [];
  for await (const event of watched) chunks.push(word(event));
  return chunks;
}

test("each event arrives once, across cuts, refusals, repetitions and a restart", async () => {
  const steps: Step[] = [
    events([status(1, "queued"), status(2, "running"), chunk("a", 3)], "cut"),
    cut,
    fault(503, "draining", { "retry-after-ms": "5" }),
    events([event("error", { error: { message: "the store does not answer", code: "store_unavailable" } })]),
    events([chunk("a", 3), chunk("b", 4)], "end"),
    events([": alive\n\n", event("restarted", { attempt: 2 }, 5), event("newer", {}, 6), chunk("ab", 7)], "cut"),
    events([status(8, "done", "ab"), chunk("after the end", 9)]),
  ];
  await Fake.serve(steps, async (octet, fake) => {
    const watched = octet.jobs.events("j1");
    assert.deepEqual(await words(watched), ["1:queued", "2:running", "3:a", "4:b", "5:restarted 2", "7:ab", "8:done"]);
    assert.equal(watched.last, 8);
    const urls = fake.requests.map((each) => each.url.replace("/v1/jobs/j1/events", ""));
    assert.deepEqual(urls, ["", "?after=3", "?after=3", "?after=3", "?after=3", "?after=4", "?after=7"]);
  });
});

test("a retry-after beyond the policy's maximum fails, and one beyond a timer's maximum waits", async () => {
  const patient = { "retry-after-ms": "60001" };
  await Fake.serve([fault(503, "draining", patient), events([status(1, "done")])], async (octet, fake) => {
    await assert.rejects(words(octet.jobs.events("j1")), { name: "Unavailable", retryAfterMs: 60001 });
    assert.equal(fake.requests.length, 1);
  });
  const ages = { "retry-after-ms": `${2 ** 32}` };
  await Fake.serve(
    [fault(503, "draining", ages), events([status(1, "done")])],
    async (octet, fake) => {
      await assert.rejects(words(octet.jobs.events("j1", { timeoutMs: 3_000 })), DeadlineExceeded);
      assert.equal(fake.requests.length, 1);
    },
    { retry: { longestRetryAfterMs: 2 ** 33 } },
  );
});

test("idleMs may be infinite", async () => {
  const later: Step = async (response) => {
    response.writeHead(200, { "content-type": "text/event-stream" }).flushHeaders();
    await new Promise((resolve) => setTimeout(resolve, 100));
    response.end(status(1, "done"));
  };
  await Fake.serve([later], async (octet, fake) => {
    assert.deepEqual(await words(octet.jobs.events("j1", { idleMs: Infinity })), ["1:done"]);
    assert.equal(fake.requests.length, 1);
  });
});

test("a watch continues after the given event", async () => {
  await Fake.serve([events([status(5, "done")])], async (octet, fake) => {
    assert.deepEqual(await words(octet.jobs.events("j1", { after: 4 })), ["5:done"]);
    assert.equal(fake.requests[0]?.url, "/v1/jobs/j1/events?after=4");
  });
});

test("a watch with no events left ends, and wait returns the job", async () => {
  const over: Step = json(undefined, 204);
  await Fake.serve([over, over, json(job("done", "ab"))], async (octet, fake) => {
    assert.deepEqual(await words(octet.jobs.events("j1", { after: 5 })), []);
    assert.equal((await octet.jobs.wait("j1", { after: 5 })).text, "ab");
    const urls = fake.requests.map((each) => each.url.replace("/v1/jobs/j1", ""));
    assert.deepEqual(urls, ["/events?after=5", "/events?after=5", ""]);
  });
});

test("an idle connection is reopened", async () => {
  await Fake.serve([events([status(1, "queued")], "silence"), events([status(2, "done")])], async (octet, fake) => {
    assert.deepEqual(await words(octet.jobs.events("j1", { idleMs: 1000 })), ["1:queued", "2:done"]);
    await fake.requests[0]!.gone;
  });
});

test("comments reset the idle timeout", async () => {
  const alive: Step = async (response) => {
    response.writeHead(200, { "content-type": "text/event-stream" });
    for (let beats = 0; beats < 4; beats++) {
      response.write(":\n\n");
      await new Promise((resolve) => setTimeout(resolve, 500));
    }
    response.end(status(1, "done"));
  };
  await Fake.serve([alive], async (octet, fake) => {
    assert.deepEqual(await words(octet.jobs.events("j1", { idleMs: 1500 })), ["1:done"]);
    assert.equal(fake.requests.length, 1);
  });
});

test("reconnects are limited, and every event resets their count", async () => {
  const steps = [events([status(1, "queued")], "cut"), cut, cut, events([status(2, "running")], "cut"), cut, cut, cut];
  await Fake.serve(steps, async (octet, fake) => {
    await assert.rejects(words(octet.jobs.events("j1", { maxResumes: 3 })), { name: "Unavailable" });
    assert.equal(fake.requests.length, 7);
  });
});

test("an unknown job fails at once", async () => {
  await Fake.serve([fault(404, "unknown_job")], async (octet) => {
    await assert.rejects(octet.jobs.wait("j1"), NotFound);
  });
});

test("an event without a number is a protocol error", async () => {
  await Fake.serve([events([event("status", job("queued"))])], async (octet) => {
    await assert.rejects(words(octet.jobs.events("j1")), { name: "ProtocolError" });
  });
});

test("wait returns the final job, and respects timeout and abort", async () => {
  await Fake.serve([events([status(1, "queued"), status(2, "failed", "half")])], async (octet) => {
    assert.deepEqual(await octet.jobs.wait("j1"), job("failed", "half"));
  });
  const silent = events([status(1, "running")], "silence");
  await Fake.serve([silent, silent], async (octet, fake) => {
    await assert.rejects(octet.jobs.wait("j1", { timeoutMs: 100 }), DeadlineExceeded);
    await assert.rejects(octet.jobs.wait("j1", { signal: AbortSignal.timeout(100) }), Cancelled);
    await Promise.all(fake.requests.map((each) => each.gone));
  });
});

test("a retried submission keeps its idempotency key, and two submissions have different keys", async () => {
  await Fake.serve(
    [cut, json(job("queued"), 202), json(job("queued"), 202), json(job("queued"), 202)],
    async (octet, fake) => {
      assert.deepEqual(await octet.jobs.submit({ prompt: "x", max_tokens: 3 }), job("queued"));
      await octet.jobs.submit("x");
      await octet.jobs.submit("x", { idempotencyKey: "mine" });
      const keys = fake.requests.map((each) => each.headers["idempotency-key"] as string);
      assert.match(keys[0]!, /^[0-9a-f]{32}$/);
      assert.ok(keys[0] === keys[1] && keys[1] !== keys[2] && keys[3] === "mine");
      assert.deepEqual(fake.requests[0]?.body, { prompt: "x", max_tokens: 3 });
    },
  );
});

test("jobs are read, listed and cancelled at the documented paths", async () => {
  await Fake.serve(
    [json(job("running")), json({ jobs: [job("done")] }), json({ jobs: [] }), json(job("cancelled"))],
    async (octet, fake) => {
      assert.equal((await octet.jobs.get("j1")).status, "running");
      assert.deepEqual(await octet.jobs.list({ limit: 2, before: "j 9" }), [job("done")]);
      assert.deepEqual(await octet.jobs.list(), []);
      assert.equal((await octet.jobs.cancel("j1")).status, "cancelled");
      const calls = fake.requests.map((each) => `${each.method} ${each.url}`);
      assert.deepEqual(calls, [
        "GET /v1/jobs/j1",
        "GET /v1/jobs?limit=2&before=j%209",
        "GET /v1/jobs",
        "POST /v1/jobs/j1/cancel",
      ]);
    },
  );
});

test("leaving the loop of events closes the connection", async () => {
  await Fake.serve([events([status(1, "running")], "silence")], async (octet, fake) => {
    for await (const _ of octet.jobs.events("j1")) break;
    await fake.requests[0]!.gone;
  });
});

test("without reconnects a cut is an error", async () => {
  await Fake.serve([events([status(1, "running")], "cut")], async (octet) => {
    await assert.rejects(words(octet.jobs.events("j1", { maxResumes: 0 })), ReplicaLost);
  });
});

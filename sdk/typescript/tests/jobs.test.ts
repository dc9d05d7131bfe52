/** Jobs, over routers that end and connections that are lost. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { Cancelled, DeadlineExceeded, type Job, type JobEvent, NotFound, ReplicaLost } from "../src/index.js";
import { Fake, type Step, cut, event, events, fault, json, said } from "./fake.js";

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
  };
}

function status(number: number, now: Job["status"], text = ""): string {
  return event("status", job(now, text), number);
}

/** Each event as a word. */
function word(told: JobEvent): string {
  if (told.type === "status") return `${told.number}:${told.job.status}`;
  return told.type === "chunk" ? `${told.number}:${told.chunk.text}` : `${told.number}:restarted ${told.attempt}`;
}

async function words(watched: AsyncIterable<JobEvent>): Promise<string[]> {
  const heard: string[] = [];
  for await (const told of watched) heard.push(word(told));
  return heard;
}

test("events are heard once each, across cuts, refusals, repetitions and a restart", async () => {
  const steps: Step[] = [
    events([status(1, "queued"), status(2, "running"), said("a", 3)], "cut"),
    cut,
    fault(503, "draining", { "retry-after-ms": "5" }),
    events([event("error", { error: { message: "the store does not answer", code: "store_unavailable" } })]),
    events([said("a", 3), said("b", 4)], "end"),
    events([": alive\n\n", event("restarted", { attempt: 2 }, 5), event("newer", {}, 6), said("ab", 7)], "cut"),
    events([status(8, "done", "ab"), said("after the end", 9)]),
  ];
  await Fake.telling(steps, async (octet, fake) => {
    const watched = octet.jobs.events("j1");
    assert.deepEqual(await words(watched), ["1:queued", "2:running", "3:a", "4:b", "5:restarted 2", "7:ab", "8:done"]);
    assert.equal(watched.last, 8);
    const urls = fake.heard.map((each) => each.url.replace("/v1/jobs/j1/events", ""));
    assert.deepEqual(urls, ["", "?after=3", "?after=3", "?after=3", "?after=3", "?after=4", "?after=7"]);
  });
});

test("a router that wants too much patience gets none, and one that wants more than a timer knows is waited for", async () => {
  const patient = { "retry-after-ms": "60001" };
  await Fake.telling([fault(503, "draining", patient), events([status(1, "done")])], async (octet, fake) => {
    await assert.rejects(words(octet.jobs.events("j1")), { name: "Unavailable", retryAfterMs: 60001 });
    assert.equal(fake.heard.length, 1);
  });
  const ages = { "retry-after-ms": `${2 ** 32}` };
  await Fake.telling(
    [fault(503, "draining", ages), events([status(1, "done")])],
    async (octet, fake) => {
      await assert.rejects(words(octet.jobs.events("j1", { timeoutMs: 200 })), DeadlineExceeded);
      assert.equal(fake.heard.length, 1);
    },
    { retry: { longestRetryAfterMs: 2 ** 33 } },
  );
});

test("a connection may be silent for as long as its caller likes", async () => {
  const later: Step = async (response) => {
    response.writeHead(200, { "content-type": "text/event-stream" }).flushHeaders();
    await new Promise((resolve) => setTimeout(resolve, 100));
    response.end(status(1, "done"));
  };
  await Fake.telling([later], async (octet, fake) => {
    assert.deepEqual(await words(octet.jobs.events("j1", { idleMs: Infinity })), ["1:done"]);
    assert.equal(fake.heard.length, 1);
  });
});

test("who knows some events goes on after them", async () => {
  await Fake.telling([events([status(5, "done")])], async (octet, fake) => {
    assert.deepEqual(await words(octet.jobs.events("j1", { after: 4 })), ["5:done"]);
    assert.equal(fake.heard[0]?.url, "/v1/jobs/j1/events?after=4");
  });
});

test("who knows all events of a job that has ended is told so, and has the job", async () => {
  const over: Step = json(undefined, 204);
  await Fake.telling([over, over, json(job("done", "ab"))], async (octet, fake) => {
    assert.deepEqual(await words(octet.jobs.events("j1", { after: 5 })), []);
    assert.equal((await octet.jobs.wait("j1", { after: 5 })).text, "ab");
    const urls = fake.heard.map((each) => each.url.replace("/v1/jobs/j1", ""));
    assert.deepEqual(urls, ["/events?after=5", "/events?after=5", ""]);
  });
});

test("a connection that is silent is made anew", async () => {
  await Fake.telling([events([status(1, "queued")], "silence"), events([status(2, "done")])], async (octet, fake) => {
    assert.deepEqual(await words(octet.jobs.events("j1", { idleMs: 1000 })), ["1:queued", "2:done"]);
    await fake.heard[0]!.gone;
  });
});

test("comments are a sign of life", async () => {
  const alive: Step = async (response) => {
    response.writeHead(200, { "content-type": "text/event-stream" });
    for (let beats = 0; beats < 4; beats++) {
      response.write(":\n\n");
      await new Promise((resolve) => setTimeout(resolve, 500));
    }
    response.end(status(1, "done"));
  };
  await Fake.telling([alive], async (octet, fake) => {
    assert.deepEqual(await words(octet.jobs.events("j1", { idleMs: 1500 })), ["1:done"]);
    assert.equal(fake.heard.length, 1);
  });
});

test("a router that never comes back is not waited for without end, and any event counts as hope", async () => {
  const steps = [events([status(1, "queued")], "cut"), cut, cut, events([status(2, "running")], "cut"), cut, cut, cut];
  await Fake.telling(steps, async (octet, fake) => {
    await assert.rejects(words(octet.jobs.events("j1", { maxResumes: 3 })), { name: "Unavailable" });
    assert.equal(fake.heard.length, 7);
  });
});

test("a job that nobody knows is said so at once", async () => {
  await Fake.telling([fault(404, "unknown_job")], async (octet) => {
    await assert.rejects(octet.jobs.wait("j1"), NotFound);
  });
});

test("an event without a number is nothing that can be resumed", async () => {
  await Fake.telling([events([event("status", job("queued"))])], async (octet) => {
    await assert.rejects(words(octet.jobs.events("j1")), { name: "ProtocolError" });
  });
});

test("waiting gives the job as it ended, and ends when told to", async () => {
  await Fake.telling([events([status(1, "queued"), status(2, "failed", "half")])], async (octet) => {
    assert.deepEqual(await octet.jobs.wait("j1"), job("failed", "half"));
  });
  const silent = events([status(1, "running")], "silence");
  await Fake.telling([silent, silent], async (octet, fake) => {
    await assert.rejects(octet.jobs.wait("j1", { timeoutMs: 100 }), DeadlineExceeded);
    await assert.rejects(octet.jobs.wait("j1", { signal: AbortSignal.timeout(100) }), Cancelled);
    await Promise.all(fake.heard.map((each) => each.gone));
  });
});

test("a submission that was cut off is sent again under the same key, and two have different keys", async () => {
  await Fake.telling(
    [cut, json(job("queued"), 202), json(job("queued"), 202), json(job("queued"), 202)],
    async (octet, fake) => {
      assert.deepEqual(await octet.jobs.submit({ prompt: "x", max_tokens: 3 }), job("queued"));
      await octet.jobs.submit("x");
      await octet.jobs.submit("x", { idempotencyKey: "mine" });
      const keys = fake.heard.map((each) => each.headers["idempotency-key"] as string);
      assert.match(keys[0]!, /^[0-9a-f]{32}$/);
      assert.ok(keys[0] === keys[1] && keys[1] !== keys[2] && keys[3] === "mine");
      assert.deepEqual(fake.heard[0]?.body, { prompt: "x", max_tokens: 3 });
    },
  );
});

test("jobs are read, listed and cancelled where the contract says", async () => {
  await Fake.telling(
    [json(job("running")), json({ jobs: [job("done")] }), json({ jobs: [] }), json(job("cancelled"))],
    async (octet, fake) => {
      assert.equal((await octet.jobs.get("j1")).status, "running");
      assert.deepEqual(await octet.jobs.list({ limit: 2, before: "j 9" }), [job("done")]);
      assert.deepEqual(await octet.jobs.list(), []);
      assert.equal((await octet.jobs.cancel("j1")).status, "cancelled");
      const calls = fake.heard.map((each) => `${each.method} ${each.url}`);
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
  await Fake.telling([events([status(1, "running")], "silence")], async (octet, fake) => {
    for await (const _ of octet.jobs.events("j1")) break;
    await fake.heard[0]!.gone;
  });
});

test("without any resume a cut is an error", async () => {
  await Fake.telling([events([status(1, "running")], "cut")], async (octet) => {
    await assert.rejects(words(octet.jobs.events("j1", { maxResumes: 0 })), ReplicaLost);
  });
});

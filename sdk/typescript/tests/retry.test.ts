/** Retries. */

import assert from "node:assert/strict";
import { test } from "node:test";
import fc from "fast-check";
import {
  Busy,
  DeadlineExceeded,
  type Details,
  InvalidRequest,
  ReplicaLost,
  ServerError,
  Unavailable,
} from "../src/errors.js";
import { retryAfterMs } from "../src/error_mapping.js";
import { RetrySchedule, DEFAULT_RETRY_POLICY, RetryBudget, isRetryable, resolvePolicy } from "../src/retry.js";

function schedule(
  changes: Partial<typeof DEFAULT_RETRY_POLICY> = {},
  leftMs = Infinity,
  random = 0.5,
  budget = new RetryBudget(),
): RetrySchedule {
  return new RetrySchedule(
    { ...DEFAULT_RETRY_POLICY, ...changes },
    budget,
    () => leftMs,
    () => random,
  );
}

test("a wait is never shorter than the retry-after and never much longer", () => {
  fc.assert(
    fc.property(
      fc.integer({ min: 0, max: 60_000 }),
      fc.double({ min: 0, max: 0.999, noNaN: true }),
      (after, random) => {
        const wait = schedule({}, Infinity, random).waitAfter(
          new Busy("full", { status: 429, retryAfterMs: after }),
          false,
        );
        assert.ok(wait !== null && wait >= after && wait <= after * 1.1);
      },
    ),
    { seed: 6 },
  );
});

test("with a ticket, a retry comes exactly on time, sends the ticket and costs no budget", () => {
  const budget = new RetryBudget();
  while (budget.spend());
  const tries = schedule({}, Infinity, 0.9, budget);
  const call = { method: "POST", path: "/v1/infer", headers: { "x-own": "1" } } as const;
  assert.deepEqual(tries.withTicket(call), call);
  const refused = new Busy("full", { status: 429, retryAfterMs: 700, ticket: "T" });
  assert.equal(tries.waitAfter(refused, false), 700);
  assert.deepEqual(tries.withTicket(call).headers, { "x-own": "1", "octet-ticket": "T" });
  assert.equal(tries.waitAfter(new Busy("full", { status: 429, retryAfterMs: 700 }), false), null);
});

test("a lost connection keeps the ticket, and a refusal replaces it", () => {
  const tries = schedule({ maxRetries: 9 });
  const call = { method: "POST", path: "/v1/infer" } as const;
  const after = (error: Error): unknown => {
    assert.notEqual(tries.waitAfter(error, true), null);
    return tries.withTicket(call).headers?.["octet-ticket"];
  };
  assert.equal(after(new Busy("full", { status: 429, retryAfterMs: 7, ticket: "T" })), "T");
  assert.equal(after(new Unavailable("connection reset")), "T");
  assert.equal(after(new Busy("full", { status: 429, retryAfterMs: 7 })), undefined);
});

test("without a retry-after, waits double up to their maximum", () => {
  const tries = schedule({ maxRetries: 20 }, Infinity, 0.999999);
  const waits = Array.from({ length: 9 }, () =>
    Math.round(tries.waitAfter(new Busy("full", { status: 429 }), false) ?? -1),
  );
  assert.deepEqual(waits, [100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000]);
});

test("gives up after the maximum of retries, past the deadline, and for a too long retry-after", () => {
  const full = new Busy("full", { status: 429, retryAfterMs: 100 });
  const tries = schedule({ maxRetries: 2 });
  assert.deepEqual(
    [1, 2, 3].map(() => tries.waitAfter(full, false) === null),
    [false, false, true],
  );
  assert.equal(schedule({}, 100).waitAfter(full, false), null);
  assert.equal(schedule().waitAfter(full, false, Date.now() + 90), null);
  assert.notEqual(schedule().waitAfter(full, false, Date.now() + 9_000), null);
  assert.equal(schedule().waitAfter(new Busy("full", { status: 429, retryAfterMs: 60_001 }), false), null);
});

test("all calls of a client share a retry budget, which answers refill", () => {
  const budget = new RetryBudget();
  const full = new Busy("full", { status: 429 });
  const spent = Array.from({ length: 20 }, () => schedule({}, Infinity, 0.5, budget).waitAfter(full, false));
  assert.equal(spent.filter((wait) => wait !== null).length, 10);
  for (let answers = 0; answers < 11; answers++) schedule({}, Infinity, 0.5, budget).recordAnswer();
  assert.notEqual(schedule({}, Infinity, 0.5, budget).waitAfter(full, false), null);
});

test("only safe calls are retried", () => {
  const cases: [Error, boolean, boolean][] = [
    [new Busy("", { status: 429 }), true, true],
    [new Busy("", { status: 429, code: "below_floor" }), false, false],
    [new Busy("", { status: 429, code: "deadline_unreachable" }), false, false],
    [new Busy("", { status: 429, code: "deadline_unreachable", retryAfterMs: 5 }), true, true],
    [new Unavailable("", { status: 503 }), true, true],
    [new Unavailable("", { status: 503, code: "demoted" }), false, false],
    [new Unavailable("", { unsent: true }), true, true],
    [new Unavailable("connection reset"), false, true],
    [new Unavailable("", { status: 503, worthRetrying: false }), false, false],
    [new ReplicaLost("", { code: "cut_off" }), false, true],
    [new ReplicaLost("", { partial: "so far" }), false, false],
    [new DeadlineExceeded("", { status: 504 }), false, false],
    [new ServerError("", { status: 500 }), false, false],
    [new InvalidRequest("", { status: 400 }), false, false],
    [new TypeError("a mistake"), false, false],
  ];
  for (const [error, once, repeatable] of cases) {
    assert.equal(
      schedule().waitAfter(error, false) !== null,
      once,
      `${error.name} ${error.message} ${JSON.stringify(error)}`,
    );
    assert.equal(schedule().waitAfter(error, true) !== null, repeatable, `${error.name} ${JSON.stringify(error)}`);
  }
});

test("an error with a partial answer is never retried", () => {
  const details = fc.record<Details>({
    status: fc.constantFrom(null, 429, 503),
    code: fc.constantFrom("", "queue_full", "replica_lost"),
    retryAfterMs: fc.constantFrom(null, 0, 10),
    unsent: fc.boolean(),
    partial: fc.string({ minLength: 1 }),
  });
  const kinds = fc.constantFrom(Busy, Unavailable, ReplicaLost);
  fc.assert(
    fc.property(kinds, details, fc.boolean(), (kind, chunk, again) => !isRetryable(new kind("", chunk), again)),
    { seed: 6 },
  );
});

test("an invalid retry policy is refused by field name", () => {
  for (const maxRetries of [-1, NaN, Infinity]) {
    assert.throws(() => resolvePolicy({ maxRetries }), { name: "InvalidRequest", field: "retry.maxRetries" });
  }
});

test("retry-after is parsed as milliseconds, seconds or a date", () => {
  const now = Date.parse("2026-01-01T00:00:00Z");
  const read = (given: Record<string, string>) => retryAfterMs(new Headers(given), now);
  assert.equal(read({ "retry-after": "2", "retry-after-ms": "1200" }), 1200);
  assert.equal(read({ "retry-after": "2" }), 2000);
  assert.equal(read({ "retry-after": "Thu, 01 Jan 2026 00:00:03 GMT" }), 3000);
  assert.equal(read({ "retry-after": "Wed, 31 Dec 2025 00:00:00 GMT" }), 0);
  assert.equal(read({ "retry-after": "soon" }), null);
  assert.equal(read({}), null);
});

/** Whole and streamed calls against servers that fail. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { inspect } from "node:util";
import { DeadlineExceeded, type Fetch, Octet, ReplicaLost, Unavailable } from "../src/index.js";
import { ANSWER, ENDING, Fake, RECEIPT, type Step, cut, event, events, fault, json, chunk } from "./fake.js";
import { errorOf, textOf } from "./helpers.js";

test("requests and answers are passed through unchanged", async () => {
  await Fake.serve([json(ANSWER), json(ANSWER)], async (octet, fake) => {
    const answer = await octet.infer({ prompt: "hello", max_tokens: 4, force_specialists: ["writer"] });
    assert.deepEqual(answer, ANSWER);
    await octet.infer("hello");
    const [first, second] = fake.requests;
    assert.deepEqual(first?.body, { prompt: "hello", max_tokens: 4, force_specialists: ["writer"], stream: false });
    assert.deepEqual(second?.body, { prompt: "hello", stream: false });
    assert.equal(`${first?.method} ${first?.url} ${first?.headers["content-type"]}`, "POST /v1/infer application/json");
    assert.equal(first?.headers.authorization, undefined);
  });
});

test("a stream yields chunks, then the whole answer", async () => {
  const parts = [
    ": hello\n\n",
    event("routed", { receipt: RECEIPT }),
    chunk("h"),
    chunk("i"),
    event("newer", {}),
    ENDING,
  ];
  await Fake.serve([events(parts)], async (octet, fake) => {
    const stream = octet.stream("hello");
    assert.equal(fake.requests.length, 0);
    const chunks: string[] = [];
    assert.equal(await textOf(stream, chunks), "hi");
    assert.deepEqual(chunks, ["h", "i"]);
    assert.deepEqual(await stream.answer(), ANSWER);
    assert.equal(stream.requestId, "r1");
    assert.equal((await errorOf(textOf(stream))).code, "already_read");
  });
});

test("a request says how long it waits for a place, and its time limits count after that", async () => {
  const full = fault(429, "queue_full", { "retry-after-ms": "60" });
  await Fake.serve([full, full, full, full, full, json(ANSWER)], async (octet, fake) => {
    const asked = { prompt: "x", first_token_timeout_ms: 900_000 };
    await assert.rejects(octet.infer(asked, { timeoutMs: 2_000_000, maxRetries: 1 }));
    await assert.rejects(octet.infer(asked, { timeoutMs: 2_000_000, maxRetries: 1, waitMs: 500_000 }));
    await assert.rejects(octet.infer(asked, { maxRetries: 0 }));
    await octet.infer(asked, { maxRetries: 0, waitMs: 500_000 });
    await assert.rejects(octet.infer(asked, { waitMs: -1 }), { name: "InvalidRequest", field: "waitMs" });
    const waits = fake.requests.map((each) => each.headers["octet-wait-ms"]);
    assert.deepEqual([waits[0], waits[1], waits[3], waits[4]], ["0", undefined, undefined, undefined]);
    assert.ok(
      [waits[2], waits[5]].every((wait) => Number(wait) > 400_000 && Number(wait) <= 500_000),
      waits.join(),
    );
    const limits = fake.requests.map(({ body }) => [body["timeout_ms"], body["first_token_timeout_ms"]]);
    assert.deepEqual(
      [limits[2], limits[3]],
      [
        [2_000_000, 900_000],
        [2_000_000, 900_000],
      ],
      "the wait is not over",
    );
    assert.ok(
      Number(limits[1]?.[0]) <= 1_999_941 && Number(limits[1]?.[1]) <= 899_941,
      "without a wait they count at once",
    );
  });
});

test("a refusal is retried after the server's retry-after with the time that is left", async () => {
  const full = fault(429, "queue_full", { "retry-after": "30", "retry-after-ms": "60" });
  const options = { timeoutMs: 20_000 };
  const asked = { prompt: "x", first_token_timeout_ms: 9_000 };
  const asks: [Step, (octet: Octet) => Promise<string>][] = [
    [json(ANSWER), async (octet) => (await octet.infer(asked, options)).text],
    [events([chunk("hi"), ENDING]), (octet) => textOf(octet.stream(asked, options))],
  ];
  for (const [answer, ask] of asks) {
    await Fake.serve([full, full, answer], async (octet, fake) => {
      assert.equal(await ask(octet), "hi");
      for (const [name, most] of [
        ["timeout_ms", 20_000],
        ["first_token_timeout_ms", 9_000],
      ] as const) {
        const [first = 0, second = 0, third = 0] = fake.requests.map((each) => each.body[name] as number);
        assert.ok(first <= most && second <= first - 59 && third <= second - 59, `${first} ${second} ${third}`);
      }
    });
  }
});

test("a permanent refusal is thrown at once with all its details", async () => {
  const step = fault(
    400,
    "invalid_field",
    {},
    { param: "max_tokens", limit: "at least 1", message: "max_tokens must be at least 1, got 0" },
  );
  await Fake.serve([step], async (octet, fake) => {
    const error = await errorOf(octet.infer("x"));
    const { name, status, code, field, limit, requestId, message } = error;
    assert.deepEqual(
      { name, status, code, field, limit, requestId, message },
      {
        name: "InvalidRequest",
        status: 400,
        code: "invalid_field",
        field: "max_tokens",
        limit: "at least 1",
        requestId: "r1",
        message: "max_tokens must be at least 1, got 0",
      },
    );
    assert.equal(fake.requests.length, 1);
  });
});

test("every status maps to its error class", async () => {
  const classes: [number, string, string][] = [
    [400, "malformed", "InvalidRequest"],
    [401, "unauthenticated", "Unauthenticated"],
    [403, "forbidden", "Forbidden"],
    [404, "model_not_found", "NotFound"],
    [409, "conflict", "Conflict"],
    [413, "request_too_large", "InvalidRequest"],
    [422, "no_specialist", "NoSpecialist"],
    [422, "no_tools", "InvalidRequest"],
    [429, "key_limit", "Busy"],
    [499, "cancelled", "Cancelled"],
    [500, "internal", "ServerError"],
    [503, "draining", "Unavailable"],
    [503, "replica_lost", "ReplicaLost"],
    [504, "deadline", "DeadlineExceeded"],
  ];
  await Fake.serve(
    classes.map(([status, code]) => fault(status, code)),
    async (octet) => {
      for (const [status, code, name] of classes) {
        const error = await errorOf(octet.infer("x", { maxRetries: 0 }));
        assert.deepEqual([error.status, error.code, error.name], [status, code, name]);
      }
    },
  );
});

test("an error page of a proxy is quoted briefly", async () => {
  const page = `<html><h1>Bad Gateway</h1>${"x".repeat(5000)}</html>`;
  await Fake.serve([(response) => void response.writeHead(502).end(page)], async (octet) => {
    const error = await errorOf(octet.infer("x", { maxRetries: 0 }));
    assert.ok(error instanceof Unavailable && error.message.startsWith("the server answered 502: Bad Gateway"));
    assert.ok(error.message.length < 300);
  });
});

test("an answer cut off after the first token is not retried and keeps its partial text", async () => {
  for (const then of ["cut", "end"] as const) {
    await Fake.serve(
      [events([chunk("so "), chunk("far")], then), events([chunk("again"), ENDING])],
      async (octet, fake) => {
        const chunks: string[] = [];
        const error = await errorOf(textOf(octet.stream("x"), chunks));
        assert.ok(error instanceof ReplicaLost, inspect(error));
        assert.deepEqual([error.partial, error.requestId, chunks.join("")], ["so far", "r1", "so far"]);
        assert.equal(fake.requests.length, 1);
      },
    );
  }
});

test("a whole answer that is cut off is not retried, since it may have been generated", async () => {
  await Fake.serve([cut, json(ANSWER)], async (octet, fake) => {
    assert.ok((await errorOf(octet.infer("x"))) instanceof Unavailable);
    assert.equal(fake.requests.length, 1);
  });
});

test("streams cut off before the first token are retried, and so are read-only calls", async () => {
  await Fake.serve(
    [cut, events([event("routed", { receipt: RECEIPT })], "cut"), events([chunk("hi"), ENDING])],
    async (octet, fake) => {
      assert.equal(await textOf(octet.stream("x")), "hi");
      assert.equal(fake.requests.length, 3);
    },
  );
  await Fake.serve([cut, json({ data: [] })], async (octet) => assert.deepEqual(await octet.models.list(), []));
});

test("an unreachable server is reported and retried", async () => {
  let port = 0;
  await Fake.serve([], async (_, fake) => void (port = fake.port));
  let asked = 0;
  const counted: Fetch = (url, init) => {
    asked += 1;
    return fetch(url, init);
  };
  const octet = new Octet({ baseUrl: `http://127.0.0.1:${port}/`, fetch: counted, retry: { firstWaitMs: 1 } });
  const error = await errorOf(octet.infer("x"));
  assert.ok(error instanceof Unavailable && error.unsent && error.status === null, inspect(error));
  assert.match(error.message, /^cannot reach http:\/\/127\.0\.0\.1:\d+: connect ECONNREFUSED/);
  assert.equal(asked, 3);
});

test("an error within a stream is typed by its code", async () => {
  const deadline = event("error", {
    error: { message: "too late", type: "timeout_error", param: null, code: "deadline" },
    partial: true,
  });
  await Fake.serve([events([chunk("so far"), deadline])], async (octet, fake) => {
    const error = await errorOf(textOf(octet.stream("x")));
    assert.ok(error instanceof DeadlineExceeded);
    assert.deepEqual([error.message, error.partial], ["too late", "so far"]);
    assert.equal(fake.requests.length, 1);
  });
});

test("a timeout reported by the server carries the partial text and the receipt", async () => {
  const late = json(
    {
      error: { message: "too late", type: "timeout_error", param: null, code: "deadline" },
      id: "r1",
      text: "so far",
      partial: true,
      receipt: RECEIPT,
    },
    504,
  );
  await Fake.serve([late], async (octet) => {
    const error = await errorOf(octet.infer("x"));
    assert.ok(error instanceof DeadlineExceeded);
    assert.deepEqual([error.partial, error.receipt], ["so far", RECEIPT]);
  });
});

test("invalid responses are ProtocolErrors", async () => {
  const page = (response: { end(text: string): unknown }): void => void response.end("<html>");
  await Fake.serve([page, events(["event: chunk\ndata: {\n\n"])], async (octet) => {
    assert.equal((await errorOf(octet.infer("x"))).name, "ProtocolError");
    assert.equal((await errorOf(textOf(octet.stream("x")))).name, "ProtocolError");
  });
});

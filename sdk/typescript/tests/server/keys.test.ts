/** The SDK against a router that requires API keys. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { Busy, NotFound, Octet, Unauthenticated } from "../../src/index.js";
import { errorOf } from "../helpers.js";
import { URL_OF_ROUTER } from "./router.js";

const WRITER = { prompt: "hello", force_specialists: ["writer"], max_tokens: 2 };
const OTHER = process.env["OCTET_TEST_OTHER_KEY"] ?? "";
/** Limited to one request per minute. */
const POOR = process.env["OCTET_TEST_POOR_KEY"] ?? "";
const baseUrl = URL_OF_ROUTER;

test("the key from the environment is accepted, and unknown keys are not", async () => {
  assert.ok(process.env["OCTET_API_KEY"] && OTHER);
  assert.equal((await new Octet({ baseUrl }).infer(WRITER)).finish_reason, "length");
  for (const apiKey of ["octet_nobody", `${OTHER}x`]) {
    const error = await errorOf(new Octet({ baseUrl, apiKey }).infer(WRITER));
    assert.ok(error instanceof Unauthenticated);
    assert.deepEqual([error.status, error.code], [401, "invalid_api_key"]);
    assert.ok(!error.message.includes(apiKey));
  }
});

test("jobs and receipts are visible only to their own tenant", async () => {
  const octet = new Octet({ baseUrl });
  const { id } = await octet.jobs.submit(WRITER);
  const { receipt } = await octet.jobs.wait(id);
  const other = new Octet({ baseUrl, apiKey: OTHER });
  assert.ok((await errorOf(other.jobs.get(id))) instanceof NotFound);
  assert.ok((await errorOf(other.receipts.get(receipt!.request_id))) instanceof NotFound);
});

test("a key at its limit gets a retry-after", async () => {
  const poor = new Octet({ baseUrl, apiKey: POOR, retry: { maxRetries: 0 } });
  assert.equal((await poor.infer(WRITER)).receipt.caller, "cy");
  const error = await errorOf(poor.infer(WRITER));
  assert.ok(error instanceof Busy);
  assert.equal(error.code, "rate_limit_exceeded");
  assert.ok(error.retryAfterMs !== null && error.retryAfterMs > 0);
});

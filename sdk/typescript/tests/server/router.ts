/** The router under test, started by tests/sdk. */

import assert from "node:assert/strict";
import { NotFound, type Octet } from "../../src/index.js";

export const URL_OF_ROUTER = process.env["OCTET_TEST_URL"] ?? "";
assert.ok(URL_OF_ROUTER, "OCTET_TEST_URL must name a router; tests/sdk/test_typescript.py starts one");

/** Waits until the request's receipt reports the cancellation. */
export async function cancelled(octet: Octet, requestId: string | null): Promise<void> {
  assert.ok(requestId);
  const receipt = await receiptOf(octet, requestId);
  assert.equal(receipt.error?.reason, "cancelled");
}

async function receiptOf(octet: Octet, requestId: string): ReturnType<Octet["receipts"]["get"]> {
  for (const until = Date.now() + 300_000; ;) {
    try {
      return await octet.receipts.get(requestId);
    } catch (error) {
      if (!(error instanceof NotFound) || Date.now() > until) throw error;
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
  }
}

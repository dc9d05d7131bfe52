/** A job during a restart of its router. tests/sdk/restart.py restarts the router after the first chunk. */

import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { test } from "node:test";
import { Octet } from "../../src/index.js";
import { URL_OF_ROUTER } from "./router.js";

const MARK = process.env["OCTET_TEST_MARK"] ?? "";

test("a watcher sees every event once, and the job ends once", async () => {
  const octet = new Octet({ baseUrl: URL_OF_ROUTER });
  const { id } = await octet.jobs.submit({ prompt: "hello", force_specialists: ["writer"] });
  const numbers: number[] = [];
  const seen: string[] = [];
  let text = "";
  for await (const event of octet.jobs.events(id)) {
    numbers.push(event.number);
    if (event.type === "status") seen.push(event.job.status);
    if (event.type === "restarted") {
      seen.push(`restarted ${event.attempt}`);
      text = "";
    }
    if (event.type === "chunk") {
      text += event.chunk.text;
      writeFileSync(MARK, "started");
    }
  }
  assert.deepEqual(
    numbers,
    [...numbers.keys()].map((index) => index + 1),
  );
  assert.deepEqual(seen, ["queued", "running", "restarted 2", "done"]);
  const job = await octet.jobs.get(id);
  assert.deepEqual([job.status, job.text, job.attempts, text], ["done", "one two three ", 2, "one two three "]);
});

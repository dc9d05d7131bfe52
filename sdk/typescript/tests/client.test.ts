/** Client options and paths. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { inspect } from "node:util";
import { Octet, type OctetError, Unavailable } from "../src/index.js";
import { ANSWER, Fake, RECEIPT, fault, json } from "./fake.js";
import { errorOf } from "./helpers.js";

test("the API key is sent in one header and never shown elsewhere", async () => {
  const key = "octet-secret-0123456789";
  process.env["OCTET_API_KEY"] = `${key}-environment`;
  try {
    await Fake.serve([json(ANSWER), json(ANSWER), fault(401, "unauthenticated")], async (_, fake) => {
      const octet = fake.client({ apiKey: key });
      await octet.infer("x");
      await fake.client().infer("x");
      const seen = fake.requests.map((each) => each.headers.authorization);
      assert.deepEqual(seen, [`Bearer ${key}`, `Bearer ${key}-environment`]);
      const error = await errorOf(octet.infer("x"));
      assert.ok(!inspect([octet, error], { depth: 20, showHidden: true }).includes("octet-secret"));
      assert.ok(!JSON.stringify([octet, error]).includes("octet-secret"));
    });
  } finally {
    delete process.env["OCTET_API_KEY"];
  }
  for (const apiKey of [`${key}\n`, "", "ä", "x".repeat(513)]) {
    assert.throws(
      () => new Octet({ apiKey }),
      (error: OctetError) => error.field === "apiKey" && !error.message.includes(key),
    );
  }
});

test("an invalid base URL is refused by field name", () => {
  for (const baseUrl of [
    "",
    "localhost:8051",
    "ftp://x",
    "http://",
    "http://user:secret@host",
    "http://x?y",
    "http://x#y",
    "http://x:port",
  ]) {
    assert.throws(() => new Octet({ baseUrl }), { name: "InvalidRequest", field: "baseUrl" }, baseUrl);
  }
});

test("an API key is not sent to other machines unencrypted", async () => {
  const octet = (baseUrl: string, more: object = {}) => new Octet({ baseUrl, apiKey: "octet-secret", ...more });
  const far = [
    "http://router.example",
    "http://10.0.0.5:8051/",
    "http://localhost.example",
    "http://127.0.0.1.example",
    "http://[2001:db8::1]:8051",
    "http://router.example\\127.0.0.1",
  ];
  for (const baseUrl of far) {
    assert.throws(
      () => octet(baseUrl),
      (error: OctetError) => error.field === "baseUrl" && !error.message.includes("octet-secret"),
      baseUrl,
    );
    octet(baseUrl, { insecure: true });
    new Octet({ baseUrl });
  }
  for (const baseUrl of ["https://router.example", "http://localhost:8051", "http://127.0.0.1/x", "http://[::1]:1"]) {
    octet(baseUrl);
  }
  process.env["OCTET_API_KEY"] = "octet-secret";
  try {
    assert.throws(() => new Octet({ baseUrl: "http://router.example" }), { field: "baseUrl" });
  } finally {
    delete process.env["OCTET_API_KEY"];
  }
});

test("redirects are not followed", async () => {
  await Fake.serve(
    [(response) => void response.writeHead(307, { location: "/elsewhere" }).end(), json(ANSWER)],
    async (octet, fake) => {
      assert.ok((await errorOf(octet.infer("x"))) instanceof Unavailable);
      assert.equal(fake.requests.length, 1);
    },
  );
});

test("names are escaped in paths", async () => {
  await Fake.serve([json(RECEIPT), json({ id: "octet/a b" })], async (octet, fake) => {
    await octet.receipts.get("a/../b?c");
    await octet.models.get("octet/a b");
    assert.deepEqual(
      fake.requests.map((each) => each.url),
      ["/v1/receipts/a%2F..%2Fb%3Fc", "/v1/models/octet/a%20b"],
    );
    for (const id of ["", ".", ".."]) {
      assert.equal((await errorOf(octet.receipts.get(id))).field, "id");
      assert.equal((await errorOf(octet.models.get(`octet/${id}`))).field, "id");
    }
  });
});

/** The library runs on web APIs alone: no Node module, no `process`. */

import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { dirname, join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import vm from "node:vm";
import { ENDING, Fake, events, json, chunk } from "./fake.js";

const SOURCE = join(dirname(fileURLToPath(import.meta.url)), "..", "src");
/** All web globals that the library may use. */
const WEB = {
  AbortController,
  AbortSignal,
  Headers,
  ReadableStream,
  Response,
  TextDecoder,
  TextEncoder,
  URL,
  clearTimeout,
  console,
  crypto,
  fetch,
  setTimeout,
};

interface Linked {
  readonly namespace: { Octet: typeof import("../src/index.js").Octet };
  link(linker: (specifier: string, from: { identifier: string }) => Promise<Linked>): Promise<void>;
  evaluate(): Promise<void>;
}

type Modules = { SourceTextModule: new (text: string, options: { context: vm.Context; identifier: string }) => Linked };

async function loaded(globals: object): Promise<Linked["namespace"]> {
  const context = vm.createContext({ ...globals });
  const known = new Map<string, Linked>();
  const module = (path: string): Linked => {
    const made =
      known.get(path) ??
      new (vm as unknown as Modules).SourceTextModule(readFileSync(path, "utf8"), { context, identifier: path });
    known.set(path, made);
    return made;
  };
  const index = module(join(SOURCE, "index.js"));
  await index.link(async (specifier, from) => {
    assert.match(specifier, /^\.\//, `${from.identifier} imports ${specifier}`);
    return module(join(dirname(from.identifier), specifier));
  });
  await index.evaluate();
  return index.namespace;
}

test("streams with web globals alone", async () => {
  const { Octet } = await loaded(WEB);
  await Fake.serve([events([chunk("h"), chunk("ällo"), ENDING]), json({ data: [] })], async (_, fake) => {
    const octet = new Octet({ baseUrl: `http://127.0.0.1:${fake.port}`, apiKey: "k" });
    let text = "";
    for await (const chunk of octet.stream("x")) text += chunk.text;
    assert.equal(text, "hällo");
    assert.equal((await octet.models.list()).length, 0);
  });
});

test("ignores a bundler's substitute for the environment", async () => {
  const { Octet } = await loaded({ ...WEB, process: { env: { OCTET_API_KEY: "bundled" } } });
  await Fake.serve([json({ data: [] })], async (_, fake) => {
    await new Octet({ baseUrl: `http://127.0.0.1:${fake.port}` }).models.list();
    assert.equal(fake.requests[0]?.headers.authorization, undefined);
  });
});

test("files import only their siblings", () => {
  const files = readdirSync(SOURCE).filter((name) => name.endsWith(".js"));
  assert.ok(files.length > 10);
  for (const name of files) {
    const text = readFileSync(join(SOURCE, name), "utf8");
    for (const [, from = ""] of text.matchAll(/(?:from|import)\s*\(?\s*["']([^"']+)["']/g))
      assert.match(from, /^\.\/\w+\.js$/, name);
    assert.ok(!/\b(require|Buffer|__dirname)\b/.test(text.replace(/\/\*[\s\S]*?\*\//g, "")), name);
  }
});

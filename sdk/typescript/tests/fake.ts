/** A scripted server, for faults that a real server does not produce on demand. */

import { once } from "node:events";
import { type IncomingMessage, type Server, type ServerResponse, createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { Octet, type OctetOptions } from "../src/index.js";

export interface ReceivedRequest {
  readonly method: string;
  readonly url: string;
  readonly headers: IncomingMessage["headers"];
  readonly body: Record<string, unknown>;
  /** Resolves when the caller has closed the connection. */
  readonly gone: Promise<unknown>;
}

export type Step = (response: ServerResponse, received: ReceivedRequest) => void | Promise<void>;

export class Fake {
  readonly requests: ReceivedRequest[] = [];
  readonly #server: Server;
  readonly #steps: Step[];

  private constructor(steps: readonly Step[]) {
    this.#steps = [...steps];
    this.#server = createServer((request, response) => void this.#answer(request, response));
  }

  /** Starts a server in which each call takes the next step. */
  static async serve(
    steps: readonly Step[],
    test: (octet: Octet, fake: Fake) => Promise<void>,
    options: OctetOptions = {},
  ): Promise<void> {
    const fake = new Fake(steps);
    fake.#server.listen(0, "127.0.0.1");
    await once(fake.#server, "listening");
    try {
      await test(fake.client(options), fake);
    } finally {
      fake.#server.closeAllConnections();
      fake.#server.close();
    }
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  client(options: OctetOptions = {}): Octet {
    return new Octet({ baseUrl: `http://127.0.0.1:${this.port}`, retry: { firstWaitMs: 1 }, ...options });
  }

  /** Waits for the given number of calls. */
  async called(times: number): Promise<void> {
    while (this.requests.length < times) await new Promise((resolve) => setTimeout(resolve, 5));
  }

  async #answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const parts: Buffer[] = [];
    for await (const part of request) parts.push(part as Buffer);
    const text = Buffer.concat(parts).toString();
    const body = text === "" ? {} : (JSON.parse(text) as Record<string, unknown>);
    const { method = "", url = "", headers } = request;
    const received = { method, url, headers, body, gone: once(response, "close") };
    this.requests.push(received);
    const step = this.#steps.shift() ?? fault(500, "no_more_steps");
    await step(response, received);
  }
}

export function json(body: unknown, status = 200, headers: Record<string, string> = {}): Step {
  return (response) => {
    response.writeHead(status, { "content-type": "application/json", "x-request-id": "r1", ...headers });
    response.end(JSON.stringify(body));
  };
}

export function fault(status: number, code: string, headers: Record<string, string> = {}, more: object = {}): Step {
  const error = { message: `it is ${code}`, type: "server_error", param: null, code, ...more };
  return json({ error }, status, headers);
}

/** Sends events, and then ends, cuts the connection or stays silent. */
export function events(parts: readonly string[], then: "end" | "cut" | "silence" = "end"): Step {
  return async (response) => {
    response.writeHead(200, { "content-type": "text/event-stream", "x-request-id": "r1" });
    for (const part of parts) await new Promise((event) => response.write(part, event));
    if (then === "end") response.end();
    if (then === "cut") setTimeout(() => response.destroy(), 20);
  };
}

export function event(type: string, data: unknown, id?: number): string {
  return `${id === undefined ? "" : `id: ${id}\n`}event: ${type}\ndata: ${JSON.stringify(data)}\n\n`;
}

export const RECEIPT = {
  request_id: "r1",
  specialist: "writer",
  experts_used: ["writer"],
  timings: { total: 0.25 },
  usage: { prompt_tokens: 3, completion_tokens: 2, total_tokens: 5, cache_hit_tokens: 1 },
};
export const ENDING = event("receipt", { finish_reason: "stop", partial: false, validation: null, receipt: RECEIPT });
export const ANSWER = {
  id: "r1",
  text: "hi",
  finish_reason: "stop",
  tool_calls: [],
  partial: false,
  validation: null,
  specialist: "writer",
  experts_used: ["writer"],
  tokens_generated: 2,
  latency_ms: 250,
  usage: RECEIPT.usage,
  receipt: RECEIPT,
};

export function chunk(text: string, id?: number): string {
  return event("chunk", { text }, id);
}

export const hang: Step = () => undefined;
export const cut: Step = (response) => void response.destroy();

/** Receipts that the router still keeps. */

import type { CallOptions, Caller } from "./caller.js";
import { segment } from "./path.js";
import type { Receipt } from "./receipt.js";

export class Receipts {
  constructor(private readonly caller: Caller) {}

  /** By the id of a request or of an answer. Throws NotFound. */
  async get(id: string, options: CallOptions = {}): Promise<Receipt> {
    return this.caller.fetch<Receipt>({ method: "GET", path: `/v1/receipts/${segment("id", id)}` }, options);
  }
}

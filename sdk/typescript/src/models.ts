/** Whom one may ask: `octet`, and every name that pins. */

import type { CallOptions, Caller } from "./caller.js";
import { segment } from "./path.js";

export interface Model {
  id: string;
  object: "model";
  /** Seconds since 1970. */
  created: number;
  owned_by: string;
}

export class Models {
  constructor(private readonly caller: Caller) {}

  async list(options: CallOptions = {}): Promise<Model[]> {
    const { data } = await this.caller.fetch<{ data: Model[] }>({ method: "GET", path: "/v1/models" }, options);
    return data;
  }

  /** Throws NotFound. */
  async get(id: string, options: CallOptions = {}): Promise<Model> {
    const path = id.split("/").map((part) => segment("id", part));
    return this.caller.fetch<Model>({ method: "GET", path: `/v1/models/${path.join("/")}` }, options);
  }
}

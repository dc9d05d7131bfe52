// The router's own routes, with the operator's key.

import { key } from "./session.js";

const PATIENCE_MS = 20_000;
/** Headers that tell the router which page asks: no other key would help. */
const OF_PLACE = new Set(["host", "origin", "sec-fetch-site"]);
const ROOT = new URL("../v1/", import.meta.url);

/** What the router said instead of doing it; status 0: it could not be reached. */
export class Refused extends Error {
  constructor(status, message, param = "") {
    super(message);
    this.status = status;
    this.param = param;
  }

  /** Not who asks is wrong, but where from. */
  get isOfPlace() {
    return this.status === 403 && OF_PLACE.has(this.param);
  }
}

export function open(path, options = {}) {
  const shown = key();
  const headers = { ...options.headers, ...(shown ? { authorization: `Bearer ${shown}` } : {}) };
  return fetch(new URL(path, ROOT), { ...options, headers, cache: "no-store", credentials: "omit", redirect: "error" });
}

export async function refusal(response) {
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch {
    // not the router's own words: a proxy's
  }
  const message = error.message || `the router answered ${response.status}`;
  const param = error.param ?? "";
  return new Refused(response.status, inWords(response.status, message, param), param);
}

function inWords(status, message, param) {
  if (status === 403 && param === "host") return `The router shows nothing to a page at this address: ${message}`;
  if (status === 403 && OF_PLACE.has(param)) {
    return `The router takes this page for somebody else's, as it would behind a proxy that changes the Host header: ${message}`;
  }
  if (status === 401) return `This router asks for a key: ${message}`;
  if (status === 403) return `This key may call, not operate: ${message}`;
  return message.charAt(0).toUpperCase() + message.slice(1);
}

async function answered(path, options, lost) {
  let response;
  try {
    response = await open(path, { ...options, signal: AbortSignal.timeout(PATIENCE_MS) });
    if (response.ok) return await response.json();
  } catch {
    throw new Refused(0, lost);
  }
  throw await refusal(response);
}

/** Raises Refused. */
export function get(path) {
  return answered(path, {}, "The router could not be reached.");
}

/** Raises Refused. */
export function post(path, body) {
  const lost = "The router could not be reached. Whether the change was made is not known: look at the audit.";
  const headers = { "content-type": "application/json" };
  return answered(path, { method: "POST", headers, body: JSON.stringify(body) }, lost);
}

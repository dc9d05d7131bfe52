// Calls to the router's API with the operator's key.

const KEY = "octet-key";
const NAME = "octet-name";
const fallback = new Map();

function read(name) {
  try {
    return sessionStorage.getItem(name) ?? fallback.get(name) ?? "";
  } catch {
    return fallback.get(name) ?? "";
  }
}

function write(name, value) {
  fallback.set(name, value);
  try {
    if (value) sessionStorage.setItem(name, value);
    else sessionStorage.removeItem(name);
  } catch {
    // session storage is unavailable: keep the value for this page only
  }
}

export const key = () => read(KEY);
export const setKey = (value) => write(KEY, value);
export const operatorName = () => read(NAME);
export const setOperatorName = (value) => write(NAME, value);

const TIMEOUT_MS = 20_000;
/** Headers that identify the page that sends a request. If the router refuses them, another key does not help. */
const ORIGIN_HEADERS = new Set(["host", "origin", "sec-fetch-site"]);
const ROOT = new URL("../v1/", import.meta.url);

/** An error response; status 0 means that the router could not be reached. */
export class ApiError extends Error {
  constructor(status, message, param = "") {
    super(message);
    this.status = status;
    this.param = param;
  }

  /** Whether the page's address is refused, not its key. */
  get isWrongOrigin() {
    return this.status === 403 && ORIGIN_HEADERS.has(this.param);
  }
}

export function open(path, options = {}) {
  const current = key();
  const headers = { ...options.headers, ...(current ? { authorization: `Bearer ${current}` } : {}) };
  return fetch(new URL(path, ROOT), { ...options, headers, cache: "no-store", credentials: "omit", redirect: "error" });
}

export async function errorFrom(response) {
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch {
    // the body does not come from the router: a proxy answered
  }
  const message = error.message || `the router answered ${response.status}`;
  const param = error.param ?? "";
  return new ApiError(response.status, explain(response.status, message, param), param);
}

function explain(status, message, param) {
  if (status === 403 && param === "host") return `The router does not accept requests from a page at this address: ${message}`;
  if (status === 403 && ORIGIN_HEADERS.has(param)) {
    return `The router treats this page as a different origin; a proxy that changes the Host header may be the cause: ${message}`;
  }
  if (status === 401) return `This router requires a key: ${message}`;
  if (status === 403) return `This key lacks the role operate: ${message}`;
  return message.charAt(0).toUpperCase() + message.slice(1);
}

async function request(path, options, lost) {
  let response;
  try {
    response = await open(path, { ...options, signal: AbortSignal.timeout(TIMEOUT_MS) });
    if (response.ok) return await response.json();
  } catch {
    throw new ApiError(0, lost);
  }
  throw await errorFrom(response);
}

/** Throws ApiError. */
export function get(path) {
  return request(path, {}, "The router could not be reached.");
}

/** Throws ApiError. */
export function post(path, body) {
  const lost = "The router could not be reached. Check the audit log to see whether the change was made.";
  const headers = { "content-type": "application/json" };
  return request(path, { method: "POST", headers, body: JSON.stringify(body) }, lost);
}

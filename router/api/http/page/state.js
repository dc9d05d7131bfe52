// State shared by all parts of the page: the newest overview, its age, and the history.

import { byId, setData, setText } from "./dom.js";
import { clock, duration } from "./format.js";

const STALE_MS = 10_000;

export class Freshness {
  #createdAt = 0;
  #receivedAt = 0;
  #receivedTick = 0;
  #open = false;
  #problem = "Connecting…";
  #retryAt = 0;
  #failure = "";
  #lost = false;
  #announced = "connecting";

  opened() {
    this.#open = true;
    this.#problem = "";
  }

  /** Records the arrival of an overview. A repeated time is not new data. */
  received(atMs) {
    this.#open = true;
    if (atMs === this.#createdAt) return;
    this.#createdAt = atMs;
    this.#receivedAt = Date.now();
    this.#receivedTick = performance.now();
  }

  lost(message, retryAt) {
    this.#open = false;
    this.#lost = true;
    this.#problem = message;
    this.#retryAt = retryAt;
  }

  /** Records a failure of the page itself. */
  failed(message) {
    this.#failure = message;
  }

  recovered() {
    this.#failure = "";
  }

  /** The larger age of two clocks: one of them may have been suspended. */
  get ageMs() {
    if (!this.#createdAt) return Infinity;
    return Math.max(0, Date.now() - this.#receivedAt, performance.now() - this.#receivedTick);
  }

  /** The router's time. */
  get nowMs() {
    return this.#createdAt ? this.#createdAt + this.ageMs : Date.now();
  }

  get isLive() {
    return this.#open && !this.#failure && this.ageMs < STALE_MS;
  }

  /** The time of the data shown. */
  get asOf() {
    return clock(this.#createdAt);
  }

  get words() {
    if (this.isLive) return `Live, ${this.asOf}`;
    const wait = Math.ceil((this.#retryAt - Date.now()) / 1000);
    const again = !this.#open && this.#retryAt ? (wait > 0 ? ` Trying again in ${wait} s.` : " Trying again…") : "";
    if (!this.#createdAt) return `${this.#why}${again}` || "Connecting…";
    return `As of ${this.asOf}, ${duration(this.ageMs / 1000)} old — not live. ${this.#why}${again}`.trim();
  }

  get #why() {
    return this.#failure || (this.#open ? "" : this.#problem);
  }

  show() {
    setData(document.body, "live", this.isLive ? "yes" : "no");
    setText(byId("fresh-text"), this.words);
    this.#announce();
  }

  /** Announces the change to and from live data once, not every second. */
  #announce() {
    const state = this.isLive ? "live" : this.#createdAt || this.#lost ? "lost" : "connecting";
    if (state === this.#announced) return;
    const before = this.#announced;
    this.#announced = state;
    const old = this.#createdAt ? `Not live: all data is as of ${this.asOf}.` : "Not live.";
    if (state === "lost") setText(byId("announce-live"), `${old} ${this.#why}`.trim());
    else setText(byId("announce-live"), before === "lost" ? "Live again." : "");
  }
}

/** Points over time by specialist, bounded by the span of the router's first history. */
export class Series {
  #points = new Map();
  #span = 0;
  #step = 10;

  get stepSeconds() {
    return this.#step;
  }

  /** Replaces all points. */
  replace(history) {
    this.#points.clear();
    this.#span = 0;
    this.merge(history);
  }

  /** Adds newer points and replaces corrected ones. */
  merge(history) {
    this.#step = history.step_seconds || this.#step;
    for (const { name, points } of history.specialists) {
      const known = this.#points.get(name) ?? [];
      const from = points.length ? points[0].at_unix_ms : Infinity;
      const all = [...known.filter((point) => point.at_unix_ms < from), ...points];
      if (all.length) this.#span = Math.max(this.#span, points.at(-1)?.at_unix_ms - points[0]?.at_unix_ms || 0);
      this.#points.set(name, trimmed(all, this.#keepMs));
    }
  }

  /** Oldest first; 0 seconds means all points. */
  of(name, lastSeconds = 0) {
    const points = this.#points.get(name) ?? [];
    if (!lastSeconds || !points.length) return points;
    const from = points.at(-1).at_unix_ms - lastSeconds * 1000;
    return points.filter((point) => point.at_unix_ms >= from);
  }

  get #keepMs() {
    return Math.max(this.#span, 3_600_000);
  }
}

function trimmed(points, keepMs) {
  const from = (points.at(-1)?.at_unix_ms ?? 0) - keepMs;
  return points[0]?.at_unix_ms < from ? points.filter((point) => point.at_unix_ms >= from) : points;
}

export const fresh = new Freshness();
export const series = new Series();

/** `overview` is null until the first has arrived. */
export const shared = { overview: null };

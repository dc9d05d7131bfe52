// How old what is shown is. Ages are by the router's clock: this machine's may be wrong.

import { byId, setData, setText } from "./dom.js";
import { clock, duration } from "./format.js";

const STALE_MS = 10_000;

export class Freshness {
  #madeAt = 0;
  #heardAt = 0;
  #heardTick = 0;
  #open = false;
  #trouble = "Connecting…";
  #retryAt = 0;
  #broken = "";

  opened() {
    this.#open = true;
    this.#trouble = "";
  }

  /** An overview has come. One that says the same time again is no news. */
  heard(atMs) {
    this.#open = true;
    if (atMs === this.#madeAt) return;
    this.#madeAt = atMs;
    this.#heardAt = Date.now();
    this.#heardTick = performance.now();
  }

  lost(words, retryAt) {
    this.#open = false;
    this.#trouble = words;
    this.#retryAt = retryAt;
  }

  /** The page itself failed. */
  broke(words) {
    this.#broken = words;
  }

  whole() {
    this.#broken = "";
  }

  /** Of both clocks the one that says more: one of them may have slept. */
  get ageMs() {
    if (!this.#madeAt) return Infinity;
    return Math.max(0, Date.now() - this.#heardAt, performance.now() - this.#heardTick);
  }

  /** The router's time. */
  get nowMs() {
    return this.#madeAt ? this.#madeAt + this.ageMs : Date.now();
  }

  get isLive() {
    return this.#open && !this.#broken && this.ageMs < STALE_MS;
  }

  get words() {
    if (this.isLive) return `Live, ${clock(this.#madeAt)}`;
    const wait = Math.ceil((this.#retryAt - Date.now()) / 1000);
    const again = !this.#open && this.#retryAt ? (wait > 0 ? ` Trying again in ${wait} s.` : " Trying again…") : "";
    const why = this.#broken || (this.#open ? "" : this.#trouble);
    if (!this.#madeAt) return `${why}${again}` || "Connecting…";
    return `As of ${clock(this.#madeAt)}, ${duration(this.ageMs / 1000)} old — not live. ${why}${again}`.trim();
  }

  show() {
    setData(document.body, "live", this.isLive ? "yes" : "no");
    setText(byId("fresh-text"), this.words);
  }
}

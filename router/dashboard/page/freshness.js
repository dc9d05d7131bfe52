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
  #lost = false;
  #said = "connecting";

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
    this.#lost = true;
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

  /** When what is shown was so. */
  get asOf() {
    return clock(this.#madeAt);
  }

  get words() {
    if (this.isLive) return `Live, ${this.asOf}`;
    const wait = Math.ceil((this.#retryAt - Date.now()) / 1000);
    const again = !this.#open && this.#retryAt ? (wait > 0 ? ` Trying again in ${wait} s.` : " Trying again…") : "";
    if (!this.#madeAt) return `${this.#why}${again}` || "Connecting…";
    return `As of ${this.asOf}, ${duration(this.ageMs / 1000)} old — not live. ${this.#why}${again}`.trim();
  }

  get #why() {
    return this.#broken || (this.#open ? "" : this.#trouble);
  }

  show() {
    setData(document.body, "live", this.isLive ? "yes" : "no");
    setText(byId("fresh-text"), this.words);
    this.#announce();
  }

  /** Spoken once when it is no longer live, and once when it is again: not every second that it grows older by. */
  #announce() {
    const state = this.isLive ? "live" : this.#madeAt || this.#lost ? "lost" : "connecting";
    if (state === this.#said) return;
    const before = this.#said;
    this.#said = state;
    const old = this.#madeAt ? `Not live: everything is as of ${this.asOf}.` : "Not live.";
    if (state === "lost") setText(byId("announce-live"), `${old} ${this.#why}`.trim());
    else setText(byId("announce-live"), before === "lost" ? "Live again." : "");
  }
}

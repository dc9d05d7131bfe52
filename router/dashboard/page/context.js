// What the parts share: the newest overview, how fresh it is, and the history.

import { Freshness } from "./freshness.js";
import { Series } from "./series.js";

export const fresh = new Freshness();
export const series = new Series();

/** The newest; null until one has come. */
export const shared = { overview: null };

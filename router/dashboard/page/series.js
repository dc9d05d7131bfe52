// The points of the past, by specialist.

/** Bounded by what the router keeps: it says how far back that is with its first history. */
export class Series {
  #points = new Map();
  #span = 0;
  #step = 10;

  get stepSeconds() {
    return this.#step;
  }

  /** The whole of it. */
  replace(history) {
    this.#points.clear();
    this.#span = 0;
    this.merge(history);
  }

  /** What is newer than what is known, and what has been mended since. */
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

  /** Oldest first; 0 seconds is everything. */
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

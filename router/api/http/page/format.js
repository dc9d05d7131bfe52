// Formatting of figures. An unknown value is a dash, never a zero.

export const NOTHING = "–";
/** Separates figures in one line; a line may end with it but not begin with it. */
export const SEPARATOR = "\u00a0· ";
const counts = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const times = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const days = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
const DAY_MS = 86_400_000;

const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

/** At most three significant digits. */
function figures(value) {
  const size = Math.abs(value);
  if (size >= 100) return counts.format(value);
  return value.toFixed(size >= 10 ? 1 : 2).replace(/\.?0+$/, "") || "0";
}

export function seconds(value) {
  if (!known(value)) return NOTHING;
  if (Math.abs(value) < 0.9995) return `${figures(value * 1000)}\u00a0ms`;
  if (Math.abs(value) < 120) return `${figures(value)}\u00a0s`;
  return duration(value);
}

/** A duration in one unit, rounded down. */
export function duration(value) {
  if (!known(value)) return NOTHING;
  const whole = Math.max(0, Math.floor(value));
  if (whole < 60) return `${whole}\u00a0s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}\u00a0min`;
  if (whole < 172_800) return `${Math.floor(whole / 3600)}\u00a0h`;
  return `${Math.floor(whole / 86_400)}\u00a0d`;
}

export function percent(value) {
  if (!known(value)) return NOTHING;
  const shown = (100 * value).toFixed(1).replace(/\.0$/, "");
  return `${shown}\u00a0%`;
}

/** With one decimal, for columns. */
export function sharePercent(value) {
  return known(value) ? `${(100 * value).toFixed(1)}\u00a0%` : NOTHING;
}

/** With a fixed number of decimals, for columns. */
export function rate(value) {
  return !known(value) ? NOTHING : value >= 100 ? counts.format(value) : value.toFixed(value >= 10 ? 1 : 2);
}

export function count(value) {
  return known(value) ? counts.format(value) : NOTHING;
}

export function number(value) {
  return known(value) ? figures(value) : NOTHING;
}

export function perSecond(value) {
  return known(value) ? `${figures(value)}/s` : NOTHING;
}

export function clock(ms) {
  return known(ms) && ms > 0 ? times.format(ms) : NOTHING;
}

/** The time of day, with the date if it is more than half a day ago. */
export function when(ms, now) {
  if (!known(ms) || ms <= 0) return NOTHING;
  return now - ms < DAY_MS / 2 ? times.format(ms) : days.format(ms);
}

export function ago(ms, now) {
  return known(ms) && ms > 0 ? `${duration((now - ms) / 1000)} ago` : NOTHING;
}

/** `hold_breaker` becomes "hold breaker". */
export function words(name) {
  return String(name ?? "").replaceAll("_", " ");
}

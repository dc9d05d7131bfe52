/** Names in a URL. */

import { invalid } from "./errors.js";

/** A dot, or two, would lead elsewhere. Throws InvalidRequest. */
export function segment(field: string, name: string): string {
  if (name === "" || name === "." || name === "..") throw invalid(field, "a name", JSON.stringify(name));
  return encodeURIComponent(name);
}

export function query(parameters: Readonly<Record<string, string | number | undefined>>): string {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined);
  if (given.length === 0) return "";
  return "?" + given.map(([name, value]) => `${name}=${encodeURIComponent(String(value))}`).join("&");
}

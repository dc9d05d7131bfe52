const BYTES = 16;

/** An unguessable name. (`randomUUID` is missing from pages that came without TLS.) */
export function randomName(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(BYTES));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** What Node knows and a browser does not. */

interface NodeLike {
  readonly process?: {
    readonly versions?: { readonly node?: string };
    readonly env?: Record<string, string | undefined>;
  };
}

/** Undefined outside Node: a page has no environment, and a bundler's imitation of one is no place for a key. */
export function fromEnvironment(name: string): string | undefined {
  const { process } = globalThis as NodeLike;
  return process?.versions?.node === undefined ? undefined : process.env?.[name] || undefined;
}

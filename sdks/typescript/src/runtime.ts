/**
 * What isn't the same in every runtime: files, and where WebCrypto is found.
 *
 * Modules of Node are imported when they are needed, by a name that bundlers don't see: an edge runtime has none.
 */

interface FileSystem {
  readFile(path: string | URL): Promise<Uint8Array>;
}

const FILES: string = "node:fs/promises";
const CRYPTO: string = "node:crypto";

/** The runtime's file system, or null if it has none. */
export async function fileSystem(): Promise<FileSystem | null> {
  try {
    return (await import(FILES)) as FileSystem;
  } catch {
    return null;
  }
}

export async function webCrypto(): Promise<Crypto> {
  // Node 18 has it, but not among its globals.
  const found = globalThis.crypto as Crypto | undefined;
  return found ?? ((await import(CRYPTO)) as { webcrypto: Crypto }).webcrypto;
}

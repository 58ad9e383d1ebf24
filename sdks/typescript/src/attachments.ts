/** Attachments of what isn't bytes yet. Everything is read now, so that an email can be sent more than once. */

import { bytesOf, joined } from "./bytes.js";
import * as checks from "./checks.js";
import { InvalidArgumentError } from "./errors.js";
import type { Attachment } from "./models.js";
import { fileSystem } from "./runtime.js";

export interface AttachmentOptions {
  readonly contentType?: string | undefined;
  readonly contentId?: string | undefined;
}

export interface FileOptions extends AttachmentOptions {
  /** Another name than the file's own. */
  readonly filename?: string | undefined;
}

/** What bytes can be read of, once: also a stream of Node, which is an async iterable, and a file of Bun, a Blob. */
export type ByteStream = ReadableStream<Uint8Array> | AsyncIterable<Uint8Array> | Blob;

/** A file of the disk, in runtimes that have one. */
export async function attachmentFromFile(path: string | URL, options: FileOptions = {}): Promise<Attachment> {
  const { filename, ...rest } = options;
  const name = checks.filename(filename ?? lastComponent(path));
  const files = await fileSystem();
  if (files === null) {
    throw new InvalidArgumentError("this runtime has no files; use attachmentFromStream, or give the bytes");
  }
  return { filename: name, content: await files.readFile(path), ...rest };
}

/** The stream is read to its end. */
export async function attachmentFromStream(
  stream: ByteStream,
  filename: string,
  options: AttachmentOptions = {},
): Promise<Attachment> {
  checks.filename(filename);
  const pieces: Uint8Array[] = [];
  for await (const piece of piecesOf(stream)) {
    const bytes = bytesOf(piece);
    if (bytes === null) {
      throw new InvalidArgumentError("a stream to attach must give bytes; this one gives something else");
    }
    pieces.push(bytes);
  }
  return { filename, content: joined(pieces), ...options };
}

async function* piecesOf(stream: ByteStream): AsyncGenerator<unknown> {
  if ("arrayBuffer" in stream) {
    yield await stream.arrayBuffer();
  } else if ("getReader" in stream) {
    // Not every runtime can iterate over one.
    const reader = stream.getReader();
    for (let read = await reader.read(); !read.done; read = await reader.read()) {
      yield read.value;
    }
  } else {
    yield* stream;
  }
}

function lastComponent(path: string | URL): string {
  const whole = typeof path === "string" ? path : decodeURIComponent(path.pathname);
  return whole.slice(Math.max(whole.lastIndexOf("/"), whole.lastIndexOf("\\")) + 1);
}

/** One attempt: a request by fetch, and its answer, whole and in time. */

import { joined, parsedJson } from "./bytes.js";
import { AttemptTimeoutError, ConnectionFailedError } from "./errors.js";
import { milliseconds } from "./time.js";

/** What is needed of `fetch`, so that one of your own can take its place. */
export type Fetch = (url: string, init: RequestInit) => Promise<Response>;

// An answer that is longer is not read to its end: no real one comes near.
export const ANSWER_BYTES_MAX = 2 ** 20;

export interface Attempt {
  readonly method: string;
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string | null;
}

export interface Answer {
  readonly status: number;
  readonly headers: Headers;
  /** Undefined if the body is none. */
  readonly json: unknown;
  /** Whether there was more than ANSWER_BYTES_MAX. */
  readonly isTooLong: boolean;
}

/** The answer, whatever its status, or why there is none. Throws only what the caller's signal says. */
export async function exchange(
  fetch: Fetch,
  attempt: Attempt,
  timeoutSeconds: number,
  signal: AbortSignal | undefined,
): Promise<Answer | AttemptTimeoutError | ConnectionFailedError> {
  signal?.throwIfAborted();
  const controller = new AbortController();
  const late = new AttemptTimeoutError(`there was no whole answer within ${timeoutSeconds} s`);
  const timer = setTimeout(() => controller.abort(late), milliseconds(timeoutSeconds));
  const cancel = (): void => controller.abort(signal?.reason);
  signal?.addEventListener("abort", cancel, { once: true });
  try {
    // A race, since a fetch of the caller's own may not heed the signal, which is listened to before anything begins.
    return await Promise.race([aborted(controller.signal), answerOf(fetch, attempt, controller.signal)]);
  } catch (error) {
    signal?.throwIfAborted();
    return controller.signal.aborted ? late : new ConnectionFailedError(describe(error), { cause: error });
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", cancel);
  }
}

async function answerOf(fetch: Fetch, attempt: Attempt, signal: AbortSignal): Promise<Answer> {
  const { method, url, headers, body } = attempt;
  const response = await fetch(url, { method, headers, body, redirect: "manual", signal });
  const content = await contentOf(response);
  const json = content === null ? undefined : parsedJson(content);
  if (content !== null && json === undefined && isJsonInChunks(response.headers)) {
    // Some versions of Node take a connection that ends between two chunks for the end of the answer.
    throw new Error("the connection ended in the middle of the answer");
  }
  return { status: response.status, headers: response.headers, json, isTooLong: content === null };
}

function isJsonInChunks(headers: Headers): boolean {
  const isChunked = headers.get("Transfer-Encoding")?.toLowerCase() === "chunked";
  return isChunked && headers.get("Content-Type")?.toLowerCase().startsWith("application/json") === true;
}

/** The bytes of the body, or null if they are too many. */
async function contentOf(response: Response): Promise<Uint8Array<ArrayBuffer> | null> {
  const pieces: Uint8Array[] = [];
  const reader = response.body?.getReader();
  let size = 0;
  for (let read = await reader?.read(); read?.done === false; read = await reader?.read()) {
    pieces.push(read.value);
    size += read.value.byteLength;
    if (size > ANSWER_BYTES_MAX) {
      // What comes of the rest is of no interest.
      reader?.cancel().catch(() => undefined);
      return null;
    }
  }
  return joined(pieces);
}

function aborted(signal: AbortSignal): Promise<never> {
  return new Promise((_, reject) => {
    signal.addEventListener("abort", () => reject(signal.reason), { once: true });
  });
}

function describe(error: unknown): string {
  // fetch itself says no more than that it failed; the reason is the cause.
  const cause = error instanceof Error && error.cause instanceof Error ? error.cause : error;
  const { message, code } = (cause ?? {}) as { message?: unknown; code?: unknown };
  return `the service could not be reached: ${String(message || code || cause)}`;
}

/** The client. It may be used by many callers at once: nothing in it changes. */

import { base64 } from "./bytes.js";
import * as checks from "./checks.js";
import { ApiError, type PosthouseError, WaitTimeoutError } from "./errors.js";
import { type Answer, ANSWER_BYTES_MAX, type Attempt, exchange, type Fetch } from "./exchange.js";
import { type Fields, isFields, textOrNull } from "./fields.js";
import { type Email, emailJson } from "./models.js";
import { checkedPolicy, pollSeconds, retryAfterSeconds, type RetryPolicy, retrySeconds } from "./policy.js";
import { type Message, messageFrom, type Sent, sentFrom } from "./results.js";
import { webCrypto } from "./runtime.js";
import { type Clock, type Sleep, systemClock, systemSleep } from "./time.js";
import { VERSION } from "./version.js";

const ATTEMPT_SECONDS = 10;
const WAIT_SECONDS = 60;
// Less than this is no time at all.
const SECONDS_MIN = 0.001;

/** An API key (with the read scope if it is to read) or a token of a login; or the two of an SMTP credential. */
export type Credential = string | { readonly username: string; readonly password: string };

/** One attempt. `status` is null if there was no answer, `waitSeconds` is null if no attempt follows. */
export interface DebugEvent {
  readonly method: string;
  readonly url: string;
  readonly status: number | null;
  /** From 1. */
  readonly attempt: number;
  readonly durationSeconds: number;
  readonly waitSeconds: number | null;
}

export interface ClientOptions {
  /** Where the service is, such as `https://mail.example.com`. */
  readonly baseUrl: string;
  /** For an attempt as a whole, from connecting to the last byte of the answer: 10 unless you say otherwise. */
  readonly timeoutSeconds?: number | undefined;
  /** How often and how long a call is tried; what isn't given is as usual. `"none"` never tries again. */
  readonly retry?: Partial<RetryPolicy> | "none" | undefined;
  /** Appended to the User-Agent, such as `shop/2.1`. */
  readonly userAgentSuffix?: string | undefined;
  /** Takes the place of the runtime's `fetch`, to go through a proxy, say. */
  readonly fetch?: Fetch | undefined;
  /** Called after every attempt, with nothing secret in what it is given. */
  readonly debug?: ((event: DebugEvent) => void) | undefined;
  readonly clock?: Clock | undefined;
  readonly sleep?: Sleep | undefined;
  /** In [0, 1). */
  readonly random?: (() => number) | undefined;
}

export interface CallOptions {
  /** Ends the call at once when it is aborted; the call then throws the signal's reason. */
  readonly signal?: AbortSignal | undefined;
}

export interface SendOptions extends CallOptions {
  /** With the same key the same email is never sent twice, for 24 hours. */
  readonly idempotencyKey?: string | undefined;
}

export interface WaitOptions extends CallOptions {
  /** 60 unless you say otherwise. */
  readonly timeoutSeconds?: number | undefined;
}

interface Success {
  readonly fields: Fields;
  readonly headers: Headers;
}

/** Sends email and reports its status. */
export class Client {
  readonly baseUrl: string;
  // Private by the language, not by a promise: nothing that prints or serialises an object can see these.
  readonly #authorization: string;
  readonly #userAgent: string;
  readonly #timeoutSeconds: number;
  readonly #retry: RetryPolicy;
  readonly #fetch: Fetch;
  readonly #debug: ((event: DebugEvent) => void) | undefined;
  readonly #clock: Clock;
  readonly #sleep: Sleep;
  readonly #random: () => number;

  constructor(credential: Credential, options: ClientOptions) {
    this.baseUrl = checks.baseUrl(options.baseUrl);
    this.#authorization = authorization(credential);
    this.#userAgent = `posthouse-typescript/${VERSION} ${checks.userAgentSuffix(options.userAgentSuffix ?? "")}`.trim();
    this.#timeoutSeconds = checks.aboveZero(options.timeoutSeconds ?? ATTEMPT_SECONDS, "timeoutSeconds");
    this.#retry = checkedPolicy(options.retry);
    this.#fetch = options.fetch ?? ((url, init) => globalThis.fetch(url, init));
    this.#debug = options.debug;
    this.#clock = options.clock ?? systemClock;
    this.#sleep = options.sleep ?? systemSleep;
    this.#random = options.random ?? Math.random;
  }

  toString(): string {
    return `Client(${this.baseUrl})`;
  }

  /**
   * The email is accepted and queued when this resolves.
   *
   * Without a key a new one is made for this call, and used for all of its attempts. A send that was aborted may or may
   * not have been accepted: send it again with the same key to know.
   */
  async send(email: Email, options: SendOptions = {}): Promise<Sent> {
    const { idempotencyKey, signal } = options;
    const key = idempotencyKey === undefined ? (await webCrypto()).randomUUID() : checks.idempotencyKey(idempotencyKey);
    const headers = { "Content-Type": "application/json", "Idempotency-Key": key };
    const body = emailJson(email);
    const success = await this.#exchange({ method: "POST", url: `${this.baseUrl}/emails`, headers, body }, 202, signal);
    return sentFrom(success.fields, success.headers.get("Idempotent-Replayed")?.toLowerCase() === "true");
  }

  /** The message as it is now. */
  async get(id: string, options: CallOptions = {}): Promise<Message> {
    const url = `${this.baseUrl}/emails/${checks.messageId(id)}`;
    const success = await this.#exchange({ method: "GET", url, headers: {}, body: null }, 200, options.signal);
    return messageFrom(success.fields);
  }

  /** The message when all its recipients have their result; WaitTimeoutError if that takes too long. */
  async wait(id: string, options: WaitOptions = {}): Promise<Message> {
    const { signal } = options;
    const seconds = checks.atLeastZero(options.timeoutSeconds ?? WAIT_SECONDS, "timeoutSeconds");
    const end = this.#clock.monotonic() + seconds;
    for (let poll = 1; ; poll += 1) {
      const message = await this.get(id, { signal });
      if (message.status !== "queued") {
        return message;
      }
      const left = end - this.#clock.monotonic();
      if (left < SECONDS_MIN) {
        throw new WaitTimeoutError(`the message ${message.id} was still queued after ${seconds} s`, message);
      }
      await this.#sleep(Math.min(pollSeconds(poll, this.#random()), left), signal);
    }
  }

  /** The first answer that is a success, after as many attempts as the policy has. */
  async #exchange(given: Attempt, status: number, signal: AbortSignal | undefined): Promise<Success> {
    const common = { Authorization: this.#authorization, Accept: "application/json", "User-Agent": this.#userAgent };
    const attempt: Attempt = { ...given, headers: { ...common, ...given.headers } };
    const end = this.#clock.monotonic() + this.#retry.totalSecondsMax;
    for (let number = 1; ; number += 1) {
      const began = this.#clock.monotonic();
      const timeoutSeconds = Math.max(SECONDS_MIN, Math.min(this.#timeoutSeconds, end - began));
      const outcome = await exchange(this.#fetch, attempt, timeoutSeconds, signal);
      const ended = this.#clock.monotonic();
      const verdict = outcome instanceof Error ? outcome : judged(outcome, status, this.#clock.now());
      const waitSeconds = verdict instanceof Error ? this.#waitSeconds(verdict, number, end - ended) : null;
      this.#debug?.({
        method: attempt.method,
        url: attempt.url,
        status: outcome instanceof Error ? null : outcome.status,
        attempt: number,
        durationSeconds: ended - began,
        waitSeconds,
      });
      if (!(verdict instanceof Error)) {
        return verdict;
      }
      if (waitSeconds === null) {
        throw verdict;
      }
      await this.#sleep(waitSeconds, signal);
    }
  }

  /** How long to wait before the next attempt; null if there is none. */
  #waitSeconds(error: PosthouseError, attempt: number, left: number): number | null {
    if (!error.isRetryable || attempt >= this.#retry.attemptsMax) {
      return null;
    }
    const seconds = retrySeconds(this.#retry, attempt, this.#random(), error.retryAfterSeconds);
    return seconds < left ? seconds : null;
  }
}

function authorization(credential: Credential): string {
  if (typeof credential !== "object" || credential === null) {
    return `Bearer ${checks.bearerToken(credential)}`;
  }
  const pair = `${checks.userName(credential.username)}:${checks.password(credential.password)}`;
  return `Basic ${base64(new TextEncoder().encode(pair))}`;
}

/** The answer, if it is the success that was asked for; the error that it stands for otherwise. */
function judged(answer: Answer, status: number, now: number): Success | ApiError {
  const fields = isFields(answer.json) ? answer.json : {};
  if (answer.status === status && textOrNull(fields, "id") !== null && textOrNull(fields, "status") !== null) {
    return { fields, headers: answer.headers };
  }
  const details = answer.status >= 400 ? fields : {};
  return new ApiError(textOrNull(details, "error") ?? whatCame(answer, status), {
    status: answer.status,
    code: textOrNull(details, "code"),
    requestId: textOrNull(details, "request_id") ?? answer.headers.get("X-Request-ID"),
    retryAfterSeconds: retryAfterSeconds(answer.headers.get("Retry-After"), now),
  });
}

function whatCame(answer: Answer, status: number): string {
  if (answer.isTooLong) {
    return `the answer is longer than ${ANSWER_BYTES_MAX} bytes`;
  }
  if (answer.status >= 300 && answer.status < 400) {
    return "the service answered with a redirect, which is not followed: check the base URL";
  }
  if (answer.status === status) {
    return "the answer is not the JSON that was expected: check the base URL";
  }
  return `the service answered with status ${answer.status}`;
}

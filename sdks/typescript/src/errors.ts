/** All errors, with a common base class. */

import type { Message } from "./results.js";

export type WebhookReason = "malformed_header" | "wrong_signature" | "outside_tolerance" | "malformed_body";

const RETRYABLE_STATUSES: ReadonlySet<number | null> = new Set([429, 503]);

/** Details of an error from the service. */
export interface ErrorDetails {
  readonly status?: number | null;
  readonly code?: string | null;
  readonly requestId?: string | null;
  readonly retryAfterSeconds?: number | null;
  readonly cause?: unknown;
}

/**
 * The base of all errors of this library.
 *
 * `status`, `code` and `requestId` are the service's, where it answered, and null otherwise; quote `requestId` when you
 * ask for help. `retryAfterSeconds` is what it asked to wait.
 */
export class PosthouseError extends Error {
  // Names stand on the prototypes: they are right in stack traces, and a minifier leaves them alone.
  static {
    this.prototype.name = "PosthouseError";
  }

  readonly status: number | null;
  readonly code: string | null;
  readonly requestId: string | null;
  readonly retryAfterSeconds: number | null;

  constructor(message: string, details: ErrorDetails = {}) {
    super(message, details.cause === undefined ? undefined : { cause: details.cause });
    this.status = details.status ?? null;
    this.code = details.code ?? null;
    this.requestId = details.requestId ?? null;
    this.retryAfterSeconds = details.retryAfterSeconds ?? null;
  }

  /** Whether the same call may succeed later. The client has retried it already, as its policy says. */
  get isRetryable(): boolean {
    return RETRYABLE_STATUSES.has(this.status) || this.code === "idempotency_in_progress";
  }

  get isInsufficientCredits(): boolean {
    return this.code === "insufficient_credits";
  }

  /** Whether the Idempotency-Key was used before, for another email. */
  get isIdempotencyConflict(): boolean {
    return this.code === "idempotency_conflict";
  }
}

/** The service answered, but not with what was asked for. */
export class ApiError extends PosthouseError {
  static {
    this.prototype.name = "ApiError";
  }
}

/** The service could not be reached, or the connection ended before its answer was whole. */
export class ConnectionFailedError extends PosthouseError {
  static {
    this.prototype.name = "ConnectionFailedError";
  }

  override get isRetryable(): boolean {
    return true;
  }
}

/** The service did not answer in time. */
export class AttemptTimeoutError extends PosthouseError {
  static {
    this.prototype.name = "AttemptTimeoutError";
  }

  override get isRetryable(): boolean {
    return true;
  }
}

/** The message was still queued when the time was up; `last` is how it was last seen. */
export class WaitTimeoutError extends PosthouseError {
  static {
    this.prototype.name = "WaitTimeoutError";
  }

  readonly last: Message;

  constructor(message: string, last: Message) {
    super(message);
    this.last = last;
  }
}

/** A request that is not to be believed; answer it with 400 and do nothing else. */
export class WebhookVerificationError extends PosthouseError {
  static {
    this.prototype.name = "WebhookVerificationError";
  }

  readonly reason: WebhookReason;

  constructor(message: string, reason: WebhookReason) {
    super(message);
    this.reason = reason;
  }
}

/** An argument or option that can't be used; nothing was sent. */
export class InvalidArgumentError extends PosthouseError {
  static {
    this.prototype.name = "InvalidArgumentError";
  }
}

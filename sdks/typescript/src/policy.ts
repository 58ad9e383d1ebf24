/** When a call is tried again, and how long it waits before that. */

import * as checks from "./checks.js";
import { InvalidArgumentError } from "./errors.js";

/**
 * How often a call is tried, and how it backs off.
 *
 * A call never takes longer than `totalSecondsMax`, all its attempts and waits together: if the next wait doesn't fit
 * into what is left, the error is thrown at once.
 */
export interface RetryPolicy {
  /** Tries in all, the first among them: 4 unless you say otherwise. */
  readonly attemptsMax: number;
  /** The first wait: 0.5. */
  readonly baseSeconds: number;
  /** By how much each wait is longer than the one before: 2. */
  readonly factor: number;
  /** The longest wait: 8. */
  readonly capSeconds: number;
  /** All attempts and waits together: 30. */
  readonly totalSecondsMax: number;
}

const USUAL: RetryPolicy = { attemptsMax: 4, baseSeconds: 0.5, factor: 2, capSeconds: 8, totalSecondsMax: 30 };
const NONE: RetryPolicy = { ...USUAL, attemptsMax: 1, totalSecondsMax: Infinity };

const DIGITS = /^[0-9]+$/;
const HTTP_DATE = /^[A-Z][a-z]{2}, \d{2} [A-Z][a-z]{2} \d{4} \d{2}:\d{2}:\d{2} GMT$/;
const WEEKDAY_CHARACTERS = 3;

export function checkedPolicy(given: Partial<RetryPolicy> | "none" | undefined): RetryPolicy {
  if (given === "none") {
    return NONE;
  }
  const policy: RetryPolicy = { ...USUAL, ...defined(given ?? {}) };
  if (!(policy.attemptsMax >= 1)) {
    throw new InvalidArgumentError("attemptsMax counts the first attempt, too, and must be at least 1");
  }
  for (const name of ["baseSeconds", "factor", "capSeconds"] as const) {
    checks.atLeastZero(policy[name], name);
  }
  if (!(policy.totalSecondsMax >= 0)) {
    throw new InvalidArgumentError("totalSecondsMax must be at least 0");
  }
  return policy;
}

/** The wait after the attempt of that number, from 1; `random` is in [0, 1). */
export function retrySeconds(policy: RetryPolicy, attempt: number, random: number, retryAfter: number | null): number {
  const backedOff = jittered(policy.baseSeconds, policy.factor, policy.capSeconds, attempt, random);
  return Math.max(backedOff, retryAfter ?? 0);
}

/** The wait after the poll of that number, from 1. */
export function pollSeconds(poll: number, random: number): number {
  return jittered(0.5, 1.5, 5, poll, random);
}

function jittered(base: number, factor: number, cap: number, number: number, random: number): number {
  // Nothing times an infinite factor is no number; it is meant as nothing.
  const grown = base === 0 ? 0 : base * factor ** (number - 1);
  return Math.min(cap, grown) * (0.5 + random / 2);
}

/** The header Retry-After, in seconds from `now`; null if it is absent or can't be read. */
export function retryAfterSeconds(value: string | null, now: number): number | null {
  const text = (value ?? "").trim();
  if (DIGITS.test(text)) {
    return Number(text);
  }
  if (!HTTP_DATE.test(text)) {
    return null;
  }
  const date = new Date(text);
  // A date that does not exist, such as 31 February, is read as another.
  if (Number.isNaN(date.getTime()) || date.toUTCString().slice(WEEKDAY_CHARACTERS) !== text.slice(WEEKDAY_CHARACTERS)) {
    return null;
  }
  return Math.max(0, date.getTime() / 1000 - now);
}

function defined(given: Partial<RetryPolicy>): Partial<RetryPolicy> {
  return Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined));
}

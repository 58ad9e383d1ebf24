/**
 * What can't be sent as it was given is refused here: above all whatever could end a header and begin another.
 *
 * Types are checked as well, since JavaScript calls this, too, and a variable of the environment may be missing.
 */

import { InvalidArgumentError } from "./errors.js";

const KEY_CHARACTERS_MAX = 255;

const CONTROL = /[\x00-\x1f\x7f]/;
const PRINTABLE = /^[ -~]*$/;
const VISIBLE = /^[!-~]+$/;
const BASE_URL = /^https?:\/\/[^/?#@\\]+(?:\/[^?#\\]*)?$/i;
// encodeURIComponent leaves these as they are, although they aren't among the unreserved characters.
const LEFT_BY_ENCODE = /[!'()*]/g;

/** The base URL without slashes at its end. */
export function baseUrl(url: unknown): string {
  if (!isText(url) || !VISIBLE.test(url) || !BASE_URL.test(url) || !isParsed(url)) {
    // The text doesn't repeat the address, which may have a password in it.
    throw new InvalidArgumentError(
      "the base URL must be http://host or https://host, with a path or not, " +
        "and without user name, password, query and fragment",
    );
  }
  return url.replace(/\/+$/, "");
}

export function bearerToken(token: unknown): string {
  if (!isText(token) || !VISIBLE.test(token)) {
    throw new InvalidArgumentError("an API key or token is printable ASCII without spaces, and not empty");
  }
  return token;
}

export function userName(text: unknown): string {
  if (!isText(text) || text === "" || text.includes(":") || CONTROL.test(text)) {
    throw new InvalidArgumentError("a user name is not empty and has neither colons nor control characters");
  }
  return text;
}

export function password(text: unknown): string {
  if (!isText(text) || text === "" || CONTROL.test(text)) {
    throw new InvalidArgumentError("a password is not empty and has no control characters");
  }
  return text;
}

export function userAgentSuffix(text: unknown): string {
  if (!isText(text) || !PRINTABLE.test(text)) {
    throw new InvalidArgumentError("the user agent's suffix may have printable ASCII characters alone");
  }
  return text;
}

export function idempotencyKey(key: unknown): string {
  if (!isText(key) || key === "" || key.length > KEY_CHARACTERS_MAX || !PRINTABLE.test(key) || key !== key.trim()) {
    throw new InvalidArgumentError(
      `an idempotency key is 1 to ${KEY_CHARACTERS_MAX} printable ASCII characters, without spaces at its ends`,
    );
  }
  return key;
}

/** The id as it stands in a path. */
export function messageId(id: unknown): string {
  if (!isText(id) || id === "" || id === "." || id === ".." || CONTROL.test(id)) {
    throw new InvalidArgumentError("this is no message id; use that of a send's result");
  }
  try {
    return encodeURIComponent(id).replace(LEFT_BY_ENCODE, (one) => `%${one.charCodeAt(0).toString(16).toUpperCase()}`);
  } catch (cause) {
    throw new InvalidArgumentError("this is no message id: it has half of a character", { cause });
  }
}

export function filename(text: unknown): string {
  if (!isText(text) || text === "" || /[/\\]/.test(text) || CONTROL.test(text)) {
    throw new InvalidArgumentError(`${JSON.stringify(text)} is no file name: it must be one without a path`);
  }
  return text;
}

export function atLeastZero(value: unknown, name: string): number {
  if (!isNumber(value) || !Number.isFinite(value) || value < 0) {
    throw new InvalidArgumentError(`${name} must be a number of at least 0`);
  }
  return value;
}

export function aboveZero(value: unknown, name: string): number {
  if (!isNumber(value) || !Number.isFinite(value) || value <= 0) {
    throw new InvalidArgumentError(`${name} must be a number above 0`);
  }
  return value;
}

function isText(value: unknown): value is string {
  return typeof value === "string";
}

function isNumber(value: unknown): value is number {
  return typeof value === "number";
}

function isParsed(url: string): boolean {
  try {
    const parsed = new URL(url);
    return parsed.hostname !== "" && parsed.port !== "0";
  } catch {
    return false;
  }
}

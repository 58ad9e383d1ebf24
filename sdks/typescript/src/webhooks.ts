/** Webhooks: verifies that a request is the service's own, and parses it. */

import { bytesOf, joined, parsedJson } from "./bytes.js";
import { InvalidArgumentError, type WebhookReason, WebhookVerificationError } from "./errors.js";
import { type Fields, integerOrNull, isFields, textOrNull, timeOrNull } from "./fields.js";
import { webCrypto } from "./runtime.js";

/** The header with a webhook's signature. */
export const SIGNATURE_HEADER = "Service-Signature";

const TOLERANCE_SECONDS = 300;
const FIELD = /^([^=,\s]+)=([^,\s]*)$/;
const TIME = /^[0-9]{1,12}$/;
const SIGNATURE = /^[0-9a-f]{64}$/;
const NAMED: ReadonlySet<string> = new Set([
  "email_id",
  "recipient_id",
  "to",
  "from",
  "subject",
  "smtp_code",
  "smtp_response",
  "test",
]);

export type EventType = "email.delivered" | "email.bounced" | "email.failed" | "webhook.test" | (string & {});

/** Which recipient of which message an event is about. `extra` has the fields that this version has no name for. */
export interface EventData {
  readonly emailId: string | null;
  readonly recipientId: string | null;
  readonly to: string | null;
  readonly from: string | null;
  readonly subject: string | null;
  readonly smtpCode: number | null;
  readonly smtpResponse: string | null;
  readonly test: boolean;
  readonly extra: Readonly<Record<string, unknown>>;
}

/** The same `id` may come more than once. */
export interface WebhookEvent {
  readonly id: string;
  readonly type: EventType;
  readonly createdAt: Date;
  readonly data: EventData;
}

export interface VerifyOptions {
  /** How long before and after the time it was signed a request is believed: 300 unless you say otherwise. */
  readonly toleranceSeconds?: number | undefined;
  /** Unix seconds; the system's clock unless you say otherwise. */
  readonly now?: number | undefined;
}

/**
 * The event, if the request is the service's own; WebhookVerificationError otherwise.
 *
 * `rawBody` is the request's body as it came, before anything parsed it; `header` the value of Service-Signature;
 * `secret` the webhook's, with its `whsec_`. A request is valid for a limited time only, to prevent
 * replays.
 */
export async function verifyWebhook(
  rawBody: Uint8Array | ArrayBuffer | string,
  header: string | null | undefined,
  secret: string,
  options: VerifyOptions = {},
): Promise<WebhookEvent> {
  const { toleranceSeconds = TOLERANCE_SECONDS, now = Date.now() / 1000 } = options;
  const body = typeof rawBody === "string" ? new TextEncoder().encode(rawBody) : bytesOf(rawBody);
  if (body === null) {
    throw new InvalidArgumentError("the body must be raw, bytes or text; what was parsed can't be verified");
  }
  if (typeof secret !== "string" || secret === "") {
    throw new InvalidArgumentError("the webhook's secret is empty; anybody could sign with it");
  }
  if (!(toleranceSeconds >= 0)) {
    throw new InvalidArgumentError("the tolerance must not be below 0");
  }
  const { time, signatures } = parsed(header);
  if (!(await isSigned(time, body, secret, signatures))) {
    refuse("wrong_signature", "the signature is not that of this body and secret");
  }
  // Written so that a clock that is no number is outside, too.
  if (!(Math.abs(now - Number(time)) <= toleranceSeconds)) {
    refuse("outside_tolerance", `it was signed more than ${toleranceSeconds} s before or after now`);
  }
  return eventOf(body);
}

function parsed(header: string | null | undefined): { time: string; signatures: string[] } {
  const fields = typeof header === "string" ? header.split(",").map((one) => FIELD.exec(one)) : [null];
  const valuesOf = (name: string): string[] => fields.flatMap((one) => (one?.[1] === name ? [one[2] ?? ""] : []));
  const [time, ...otherTimes] = valuesOf("t");
  const signatures = valuesOf("v1");
  if (fields.includes(null) || time === undefined || otherTimes.length > 0 || signatures.length === 0) {
    refuse("malformed_header", `the header ${SIGNATURE_HEADER} is not of the form t=…,v1=…`);
  }
  if (!TIME.test(time) || !signatures.every((one) => SIGNATURE.test(one))) {
    refuse("malformed_header", `the header ${SIGNATURE_HEADER} has a time or a signature that is none`);
  }
  return { time, signatures };
}

async function isSigned(time: string, body: Uint8Array, secret: string, signatures: string[]): Promise<boolean> {
  const { subtle } = await webCrypto();
  const encoder = new TextEncoder();
  const algorithm = { name: "HMAC", hash: "SHA-256" };
  const key = await subtle.importKey("raw", encoder.encode(secret), algorithm, false, ["verify"]);
  const signed = joined([encoder.encode(`${time}.`), body]);
  // WebCrypto compares in constant time.
  const verdicts = await Promise.all(signatures.map((one) => subtle.verify("HMAC", key, bytesOfHex(one), signed)));
  return verdicts.includes(true);
}

function bytesOfHex(hex: string): Uint8Array<ArrayBuffer> {
  return Uint8Array.from(hex.match(/../g) ?? [], (pair) => Number.parseInt(pair, 16));
}

function eventOf(body: Uint8Array<ArrayBuffer>): WebhookEvent {
  const given = parsedJson(body);
  if (given === undefined) {
    refuse("malformed_body", "the body is no JSON");
  }
  const fields = isFields(given) ? given : {};
  const [id, type] = [textOrNull(fields, "id"), textOrNull(fields, "type")];
  const [createdAt, data] = [timeOrNull(fields, "created_at"), fields["data"]];
  if (id === null || type === null || createdAt === null || !isFields(data)) {
    refuse("malformed_body", "the body is no event");
  }
  return { id, type, createdAt, data: dataOf(data) };
}

function dataOf(data: Fields): EventData {
  return {
    emailId: textOrNull(data, "email_id"),
    recipientId: textOrNull(data, "recipient_id"),
    to: textOrNull(data, "to"),
    from: textOrNull(data, "from"),
    subject: textOrNull(data, "subject"),
    smtpCode: integerOrNull(data, "smtp_code"),
    smtpResponse: textOrNull(data, "smtp_response"),
    test: data["test"] === true,
    extra: Object.fromEntries(Object.entries(data).filter(([name]) => !NAMED.has(name))),
  };
}

function refuse(reason: WebhookReason, message: string): never {
  throw new WebhookVerificationError(`not a genuine webhook: ${message}`, reason);
}

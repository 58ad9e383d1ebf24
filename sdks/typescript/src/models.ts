/** What is sent, and what comes back, as types. Fields are those of the HTTP interface, in camel case. */

import { base64, bytesOf } from "./bytes.js";
import * as checks from "./checks.js";
import { InvalidArgumentError } from "./errors.js";
import { type Fields, integerOrNull, objects, text, textOrNull, texts, textsByName, timeOrNull } from "./fields.js";
import { mediaTypeOf } from "./mediaTypes.js";

// A later version of the service may know more of them; the known ones are here for editors to offer.
type OrAnother = string & {};

export type MessageStatus = "queued" | "delivered" | "partial" | "failed" | OrAnother;
export type RecipientStatus = "queued" | "deferred" | "delivered" | "bounced" | "failed" | OrAnother;
export type BillingStatus = "reserved" | "settled" | "released" | OrAnother;
export type Source = "api" | "smtp" | "test" | OrAnother;
export type VariableValue = string | number | boolean | null;

/**
 * A file of an email; with a `contentId` it is an inline image, which the HTML shows as `cid:<contentId>`.
 *
 * Without a `contentType` it is guessed from the file name's extension, here or by the service. `attachmentFromFile`
 * and `attachmentFromStream` make one of what isn't bytes yet.
 */
export interface Attachment {
  readonly filename: string;
  readonly content: Uint8Array | ArrayBuffer;
  readonly contentType?: string | undefined;
  readonly contentId?: string | undefined;
}

/**
 * An email to send. Addresses are bare (`ada@example.com`) or with a name (`Ada <ada@example.com>`).
 *
 * One of `text`, `html`, `template` and `attachments` must be given, and a subject unless the template has one.
 */
export interface Email {
  readonly from: string;
  readonly to: string | readonly string[];
  readonly cc?: string | readonly string[] | undefined;
  readonly bcc?: string | readonly string[] | undefined;
  readonly replyTo?: string | undefined;
  readonly subject?: string | undefined;
  readonly text?: string | undefined;
  readonly html?: string | undefined;
  readonly template?: string | undefined;
  readonly variables?: Readonly<Record<string, VariableValue>> | undefined;
  readonly headers?: Readonly<Record<string, string>> | undefined;
  readonly tags?: string | readonly string[] | undefined;
  readonly attachments?: readonly Attachment[] | undefined;
}

/** What the service says of an attachment it took; `size` is in bytes. */
export interface SentAttachment {
  readonly filename: string;
  readonly contentType: string;
  readonly size: number;
  readonly contentId: string | null;
}

/** An accepted email: queued, not yet delivered. `replayed`: its key was used before, and this is that email. */
export interface Sent {
  readonly id: string;
  readonly status: MessageStatus;
  readonly source: Source;
  readonly requestId: string;
  readonly from: string;
  readonly to: readonly string[];
  readonly cc: readonly string[];
  readonly bcc: readonly string[];
  readonly replyTo: string | null;
  readonly subject: string;
  readonly billingStatus: BillingStatus;
  readonly recipientCount: number;
  readonly creditsReserved: number;
  readonly headers: Readonly<Record<string, string>>;
  readonly tags: readonly string[];
  readonly attachments: readonly SentAttachment[];
  readonly replayed: boolean;
}

/** One address of a message and what became of it. */
export interface Recipient {
  readonly id: string;
  readonly email: string;
  readonly status: RecipientStatus;
  readonly billingStatus: BillingStatus;
  readonly attemptCount: number;
  readonly lastSmtpCode: number | null;
  readonly lastSmtpResponse: string | null;
  readonly deliveredAt: Date | null;
  readonly bouncedAt: Date | null;
}

/** A message and what became of it; it is final when its status isn't `queued`. */
export interface Message {
  readonly id: string;
  readonly status: MessageStatus;
  readonly source: Source;
  readonly from: string;
  readonly subject: string;
  readonly billingStatus: BillingStatus;
  readonly recipientCount: number;
  readonly creditsReserved: number;
  readonly createdAt: Date | null;
  readonly recipients: readonly Recipient[];
  readonly requestId: string;
}

const WIRE_NAMES: Readonly<Record<keyof Email, string>> = {
  from: "from",
  to: "to",
  cc: "cc",
  bcc: "bcc",
  replyTo: "reply_to",
  subject: "subject",
  text: "text",
  html: "html",
  template: "template",
  variables: "variables",
  headers: "headers",
  tags: "tags",
  attachments: "attachments",
};

/** The body of the request, without what is empty. */
export function emailJson(email: Email): string {
  const body: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(email)) {
    if (!Object.hasOwn(WIRE_NAMES, name)) {
      // The service would never see it, and so could not complain.
      throw new InvalidArgumentError(`an email has no field ${name}; it has ${Object.keys(WIRE_NAMES).join(", ")}`);
    }
    if (!isEmpty(value)) {
      body[WIRE_NAMES[name as keyof Email]] = name === "attachments" ? attachmentsJson(value) : value;
    }
  }
  try {
    return JSON.stringify(body, (_, value: unknown) => checkedNumber(value));
  } catch (cause) {
    throw new InvalidArgumentError("the email can't be written as JSON: see the cause", { cause });
  }
}

export function sentFrom(given: Fields, replayed: boolean): Sent {
  return {
    id: text(given, "id"),
    status: text(given, "status"),
    source: text(given, "source"),
    requestId: text(given, "request_id"),
    from: text(given, "from"),
    to: texts(given, "to"),
    cc: texts(given, "cc"),
    bcc: texts(given, "bcc"),
    replyTo: textOrNull(given, "reply_to"),
    subject: text(given, "subject"),
    billingStatus: text(given, "billing_status"),
    recipientCount: integerOrNull(given, "recipient_count") ?? 0,
    creditsReserved: integerOrNull(given, "credits_reserved") ?? 0,
    headers: textsByName(given, "headers"),
    tags: texts(given, "tags"),
    attachments: objects(given, "attachments").map((one) => ({
      filename: text(one, "filename"),
      contentType: text(one, "content_type"),
      size: integerOrNull(one, "size") ?? 0,
      contentId: textOrNull(one, "content_id"),
    })),
    replayed,
  };
}

export function messageFrom(given: Fields): Message {
  return {
    id: text(given, "id"),
    status: text(given, "status"),
    source: text(given, "source"),
    from: text(given, "from"),
    subject: text(given, "subject"),
    billingStatus: text(given, "billing_status"),
    recipientCount: integerOrNull(given, "recipient_count") ?? 0,
    creditsReserved: integerOrNull(given, "credits_reserved") ?? 0,
    createdAt: timeOrNull(given, "created_at"),
    recipients: objects(given, "recipients").map((one) => ({
      id: text(one, "id"),
      email: text(one, "email"),
      status: text(one, "status"),
      billingStatus: text(one, "billing_status"),
      attemptCount: integerOrNull(one, "attempt_count") ?? 0,
      lastSmtpCode: integerOrNull(one, "last_smtp_code"),
      lastSmtpResponse: textOrNull(one, "last_smtp_response"),
      deliveredAt: timeOrNull(one, "delivered_at"),
      bouncedAt: timeOrNull(one, "bounced_at"),
    })),
    requestId: text(given, "request_id"),
  };
}

function attachmentsJson(attachments: readonly Attachment[]): Record<string, string>[] {
  return attachments.map((one) => {
    const filename = checks.filename(one.filename);
    const content = bytesOf(one.content);
    if (content === null) {
      throw new InvalidArgumentError(
        `the content of ${JSON.stringify(filename)} must be bytes; ` +
          "attachmentFromFile and attachmentFromStream read files and streams, TextEncoder makes bytes of a text",
      );
    }
    const contentType = one.contentType || mediaTypeOf(filename);
    return {
      filename,
      content: base64(content),
      ...(contentType ? { content_type: contentType } : {}),
      ...(one.contentId ? { content_id: one.contentId } : {}),
    };
  });
}

function isEmpty(value: unknown): boolean {
  return (
    value === undefined ||
    value === null ||
    value === "" ||
    (typeof value === "object" && Object.keys(value).length === 0)
  );
}

function checkedNumber(value: unknown): unknown {
  // JSON has no such numbers, and null in their place would be a surprise.
  if (typeof value === "number" && !Number.isFinite(value)) {
    throw new RangeError(`${value} is no number of JSON`);
  }
  return value;
}

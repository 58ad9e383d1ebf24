/** The answers of the service, as types. Fields are those of the HTTP interface, in camel case. */

import { type Fields, integerOrNull, objects, text, textOrNull, texts, textsByName, timeOrNull } from "./fields.js";

// A later version of the service may have more values; the known values help editors.
type OrAnother = string & {};

export type MessageStatus = "queued" | "delivered" | "partial" | "failed" | OrAnother;
export type RecipientStatus = "queued" | "deferred" | "delivered" | "bounced" | "failed" | OrAnother;
export type BillingStatus = "reserved" | "settled" | "released" | OrAnother;
export type Source = "api" | "smtp" | "test" | OrAnother;

/** An attachment that the service accepted; `size` is in bytes. */
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

/** An address of a message and its status. */
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

/** A message and its status; it is final when its status isn't `queued`. */
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
    attachments: objects(given, "attachments").map((item) => ({
      filename: text(item, "filename"),
      contentType: text(item, "content_type"),
      size: integerOrNull(item, "size") ?? 0,
      contentId: textOrNull(item, "content_id"),
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
    recipients: objects(given, "recipients").map((item) => ({
      id: text(item, "id"),
      email: text(item, "email"),
      status: text(item, "status"),
      billingStatus: text(item, "billing_status"),
      attemptCount: integerOrNull(item, "attempt_count") ?? 0,
      lastSmtpCode: integerOrNull(item, "last_smtp_code"),
      lastSmtpResponse: textOrNull(item, "last_smtp_response"),
      deliveredAt: timeOrNull(item, "delivered_at"),
      bouncedAt: timeOrNull(item, "bounced_at"),
    })),
    requestId: text(given, "request_id"),
  };
}

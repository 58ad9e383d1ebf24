/** An email to send and its attachments, as types. Fields are those of the HTTP interface, in camel case. */

import { base64, bytesOf } from "./bytes.js";
import * as checks from "./checks.js";
import { InvalidArgumentError } from "./errors.js";
import { mediaTypeOf } from "./mediaTypes.js";

export type VariableValue = string | number | boolean | null;

/**
 * A file of an email; with a `contentId` it is an inline image, which the HTML shows as `cid:<contentId>`.
 *
 * Without a `contentType` it is guessed from the file name's extension, here or by the service. `attachmentFromFile`
 * and `attachmentFromStream` read files and streams.
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
 * With `sendAt` it is sent then and not before; `metadata` is for your own programs, and never in the mail.
 * With `content: "forget"` no one can read it once it is accepted, and it is deleted after its result.
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
  readonly sendAt?: Date | undefined;
  readonly metadata?: Readonly<Record<string, string>> | undefined;
  readonly content?: "forget" | undefined;
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
  sendAt: "send_at",
  metadata: "metadata",
  content: "content",
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

function attachmentsJson(attachments: readonly Attachment[]): Record<string, string>[] {
  return attachments.map((attachment) => {
    const filename = checks.filename(attachment.filename);
    const content = bytesOf(attachment.content);
    if (content === null) {
      throw new InvalidArgumentError(
        `the content of ${JSON.stringify(filename)} must be bytes; ` +
          "attachmentFromFile and attachmentFromStream read files and streams, TextEncoder makes bytes of a text",
      );
    }
    const contentType = attachment.contentType || mediaTypeOf(filename);
    return {
      filename,
      content: base64(content),
      ...(contentType ? { content_type: contentType } : {}),
      ...(attachment.contentId ? { content_id: attachment.contentId } : {}),
    };
  });
}

function isEmpty(value: unknown): boolean {
  return (
    value === undefined ||
    value === null ||
    value === "" ||
    (typeof value === "object" && !(value instanceof Date) && Object.keys(value).length === 0)
  );
}

function checkedNumber(value: unknown): unknown {
  // JSON has no such numbers, and null in their place would be a surprise.
  if (typeof value === "number" && !Number.isFinite(value)) {
    throw new RangeError(`${value} is no number of JSON`);
  }
  return value;
}

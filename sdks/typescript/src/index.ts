/** The official client library of Posthouse: sends email, reports its status, verifies webhooks. */

export {
  attachmentFromFile,
  attachmentFromStream,
  type AttachmentOptions,
  type ByteStream,
  type FileOptions,
} from "./attachments.js";
export {
  type CallOptions,
  Client,
  type ClientOptions,
  type Credential,
  type DebugEvent,
  type SendOptions,
  type WaitOptions,
} from "./client.js";
export {
  ApiError,
  AttemptTimeoutError,
  ConnectionFailedError,
  type ErrorDetails,
  InvalidArgumentError,
  PosthouseError,
  WaitTimeoutError,
  type WebhookReason,
  WebhookVerificationError,
} from "./errors.js";
export type { Fetch } from "./exchange.js";
export type { Attachment, Email, VariableValue } from "./models.js";
export type { RetryPolicy } from "./policy.js";
export type {
  BillingStatus,
  Message,
  MessageStatus,
  Recipient,
  RecipientStatus,
  Sent,
  SentAttachment,
  Source,
} from "./results.js";
export type { Clock, Sleep } from "./time.js";
export { VERSION } from "./version.js";
export {
  type EventData,
  type EventType,
  SIGNATURE_HEADER,
  type VerifyOptions,
  verifyWebhook,
  type WebhookEvent,
} from "./webhooks.js";

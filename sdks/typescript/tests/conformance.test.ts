/** Every case of sdks/conformance, with both builds: `python3 ../conformance/stub.py -- sh run_tests.sh`. */

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { test } from "node:test";
import { inspect } from "node:util";

import * as esm from "posthouse-sdk";
import type { Attachment, Client, ClientOptions, Credential, Email, PosthouseError, WebhookEvent } from "posthouse-sdk";

type Library = typeof esm;
type Fields = Record<string, unknown>;

interface CaseAttachment {
  bytes?: string;
  stream?: string;
  file?: string;
  filename?: string;
  content_type?: string;
  content_id?: string;
}

interface Case {
  run: number;
  kind: "send" | "get" | "wait" | "webhook";
  client: {
    base_url: string;
    credential: { api_key?: string; jwt?: string; username?: string; password?: string };
    timeout?: number;
    retry?: "none" | Fields;
    user_agent_suffix?: string;
  };
  call: {
    email: Omit<Email, "replyTo" | "attachments"> & { reply_to?: string; attachments?: CaseAttachment[] };
    idempotency_key?: string;
    id: string;
    timeout?: number;
    body_base64: string;
    header: string | null;
    secret: string;
    tolerance?: number;
  };
  random: number[];
  now: number;
  clock: "fake" | "real";
}

const STUB = process.env["POSTHOUSE_STUB"] ?? "";
const BESIDE = 16;
const cjs = createRequire(import.meta.url)("posthouse-sdk") as Library;

for (const [build, library] of Object.entries({ esm, cjs })) {
  test(`every case with the build for ${build}`, { skip: STUB === "" && "see the first line" }, async () => {
    const { cases } = (await ask("/_/cases")) as { cases: string[] };
    const problems: string[] = [];
    const runners = Array.from({ length: BESIDE }, async () => {
      for (let name = cases.shift(); name !== undefined; name = cases.shift()) {
        problems.push(...(await problemsOf(library, name)));
      }
    });
    await Promise.all(runners);
    assert.deepEqual(problems, []);
  });
}

async function problemsOf(library: Library, name: string): Promise<string[]> {
  const given = (await ask("/_/runs", { case: name })) as Case;
  const verdict = await ask("/_/reports", { run: given.run, ...(await reportOf(library, given)) });
  const { passed, problems } = verdict as { passed: boolean; problems: string[] };
  return passed ? [] : problems.map((problem) => `${name}: ${problem}`);
}

async function reportOf(library: Library, given: Case): Promise<Fields> {
  const sleeps: number[] = [];
  const debug: Fields[] = [];
  const report: Fields = { sleeps, debug, result: null, error: null };
  try {
    if (given.kind === "webhook") {
      report["result"] = snakeCased(await verified(library, given));
    } else {
      const client = new library.Client(credentialOf(given), optionsOf(given, sleeps, debug));
      report["inspected"] = [
        inspect(client, { showHidden: true, depth: null, getters: true }),
        JSON.stringify(client),
        String(client),
      ].join(" ");
      report["result"] = snakeCased(await called(library, client, given));
    }
  } catch (error) {
    if (!(error instanceof library.PosthouseError)) {
      throw error;
    }
    report["error"] = describe(library, error);
    report["inspected"] = `${report["inspected"]} ${inspect(error, { showHidden: true, depth: null })}`;
  }
  return report;
}

async function called(library: Library, client: Client, given: Case): Promise<unknown> {
  const { call } = given;
  if (given.kind === "send") {
    return client.send(await emailOf(library, given), { idempotencyKey: call.idempotency_key });
  }
  return given.kind === "get" ? client.get(call.id) : client.wait(call.id, { timeoutSeconds: call.timeout });
}

async function verified(library: Library, given: Case): Promise<WebhookEvent> {
  const { body_base64, header, secret, tolerance } = given.call;
  const body = Buffer.from(body_base64, "base64");
  return library.verifyWebhook(body, header, secret, { now: given.now, toleranceSeconds: tolerance });
}

function credentialOf(given: Case): Credential {
  const { api_key, jwt, username, password } = given.client.credential;
  return api_key ?? jwt ?? { username: username ?? "", password: password ?? "" };
}

function optionsOf(given: Case, sleeps: number[], debug: Fields[]): ClientOptions {
  const { base_url, timeout, retry, user_agent_suffix } = given.client;
  const drawn = given.random[Symbol.iterator]();
  let at = given.now;
  const fake = {
    clock: { now: () => at, monotonic: () => at },
    sleep: async (seconds: number) => {
      sleeps.push(seconds);
      at += seconds;
    },
  };
  return {
    baseUrl: base_url,
    timeoutSeconds: timeout,
    retry: typeof retry === "object" ? camelCased(retry) : retry,
    userAgentSuffix: user_agent_suffix,
    random: () => drawn.next().value ?? 0,
    debug: ({ durationSeconds, waitSeconds, ...rest }) => {
      debug.push({ ...rest, duration: durationSeconds, wait: waitSeconds });
    },
    ...(given.clock === "fake" ? fake : {}),
  };
}

async function emailOf(library: Library, given: Case): Promise<Email> {
  const { reply_to, attachments, ...email } = given.call.email;
  const read = await Promise.all((attachments ?? []).map((one) => attachmentOf(library, one)));
  return { ...email, replyTo: reply_to, ...(attachments === undefined ? {} : { attachments: read }) };
}

async function attachmentOf(library: Library, given: CaseAttachment): Promise<Attachment> {
  const { bytes, stream, file, filename, content_type: contentType, content_id: contentId } = given;
  if (file !== undefined) {
    return library.attachmentFromFile(file, { filename, contentType, contentId });
  }
  if (stream !== undefined) {
    const once = new Blob([Buffer.from(stream, "base64")]).stream() as ReadableStream<Uint8Array>;
    return library.attachmentFromStream(once, filename ?? "", { contentType, contentId });
  }
  return { filename: filename ?? "", content: Buffer.from(bytes ?? "", "base64"), contentType, contentId };
}

function describe(library: Library, error: PosthouseError): Fields {
  const types = new Map<unknown, string>([
    [library.ApiError, "api"],
    [library.ConnectionFailedError, "connection"],
    [library.AttemptTimeoutError, "timeout"],
    [library.WaitTimeoutError, "wait_timeout"],
    [library.WebhookVerificationError, "webhook"],
    [library.InvalidArgumentError, "invalid"],
  ]);
  return {
    type: types.get(error.constructor),
    message: error.message,
    status: error.status,
    code: error.code,
    request_id: error.requestId,
    retry_after: error.retryAfterSeconds,
    is_retryable: error.isRetryable,
    is_insufficient_credits: error.isInsufficientCredits,
    is_idempotency_conflict: error.isIdempotencyConflict,
    last: error instanceof library.WaitTimeoutError ? snakeCased(error.last) : null,
    reason: error instanceof library.WebhookVerificationError ? error.reason : null,
  };
}

/** A model under the names of the HTTP interface; what the service or the caller named stays as it is. */
function snakeCased(value: unknown): unknown {
  if (Array.isArray(value)) {
    return value.map(snakeCased);
  }
  if (typeof value !== "object" || value === null || value instanceof Date) {
    return value;
  }
  const named = Object.entries(value).map(([name, one]) => [
    name.replace(/[A-Z]/g, (capital) => `_${capital.toLowerCase()}`),
    name === "extra" || name === "headers" ? one : snakeCased(one),
  ]);
  return Object.fromEntries(named);
}

function camelCased(fields: Fields): Fields {
  const camelCase = (name: string): string => name.replace(/_./g, (two) => two.slice(1).toUpperCase());
  return Object.fromEntries(Object.entries(fields).map(([name, one]) => [camelCase(name), one]));
}

async function ask(path: string, body?: unknown): Promise<unknown> {
  const init = body === undefined ? {} : { method: "POST", body: JSON.stringify(body) };
  const answer = await fetch(STUB + path, init);
  assert.ok(answer.ok, `${path} answered ${answer.status}`);
  return answer.json();
}

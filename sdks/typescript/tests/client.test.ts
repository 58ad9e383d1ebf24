/** What the cases of sdks/conformance can't show of a library in every language: builds, fetch, signals, printing. */

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import type { AddressInfo } from "node:net";
import { Readable } from "node:stream";
import { after, before, test } from "node:test";
import { inspect } from "node:util";

import * as esm from "posthouse-sdk";
import {
  ApiError,
  attachmentFromFile,
  attachmentFromStream,
  AttemptTimeoutError,
  Client,
  ConnectionFailedError,
  type Email,
  type Fetch,
  InvalidArgumentError,
  PosthouseError,
  VERSION,
  verifyWebhook,
  WebhookVerificationError,
} from "posthouse-sdk";

const KEY = "ph_test_0123456789";
const PASSWORD = "correct horse battery";
const URL_UNUSED = "https://mail.acme.example";
const EMAIL: Email = { from: "hello@acme.example", to: "ada@example.net", subject: "Hello", text: "Good morning." };
const root = new URL("../../", import.meta.url);
const cjs = createRequire(import.meta.url)("posthouse-sdk") as typeof import("posthouse-sdk");

const keys: (string | undefined)[] = [];
const service = createServer((request, response) => {
  keys.push(request.headers["idempotency-key"]?.toString());
  request.resume().on("end", () => {
    response.writeHead(202, { "Content-Type": "application/json" });
    response.end(JSON.stringify({ id: "em_1", status: "queued" }));
  });
});

before(() => new Promise<void>((resolve) => service.listen(0, "127.0.0.1", resolve)));
after(() => {
  service.close();
  service.closeAllConnections();
});

/** A fetch of one's own that accepts every email, and keeps what it was asked. */
function recorded(): { fetch: Fetch; requests: { url: string; init: RequestInit }[] } {
  const requests: { url: string; init: RequestInit }[] = [];
  const fetch: Fetch = async (url, init) => {
    requests.push({ url, init });
    return Response.json({ id: "em_1", status: "queued" }, { status: 202, headers: { "Idempotent-Replayed": "true" } });
  };
  return { fetch, requests };
}

function bodyOf(init: RequestInit | undefined): Record<string, unknown> {
  return JSON.parse(init?.body as string) as Record<string, unknown>;
}

test("import and require give the same names", () => {
  assert.deepEqual(Object.keys(cjs).sort(), Object.keys(esm).sort());
  assert.ok(new cjs.Client(KEY, { baseUrl: URL_UNUSED }) instanceof cjs.Client);
});

test("the version is the package's", () => {
  const { version } = JSON.parse(readFileSync(new URL("package.json", root), "utf8")) as { version: string };
  assert.equal(VERSION, version);
});

test("no module of Node is imported before it is needed", () => {
  for (const build of ["dist/esm/", "dist/cjs/"]) {
    const folder = new URL(build, root);
    for (const name of readdirSync(folder).filter((one) => one.endsWith(".js"))) {
      assert.doesNotMatch(readFileSync(new URL(name, folder), "utf8"), /(from|require\(|import\()\s*["']node:/, name);
    }
  }
});

test("many calls at once have a key each", async () => {
  const client = new Client(KEY, { baseUrl: `http://127.0.0.1:${(service.address() as AddressInfo).port}` });
  const sent = await Promise.all(Array.from({ length: 40 }, () => client.send(EMAIL)));
  assert.deepEqual(new Set(sent.map((one) => one.id)), new Set(["em_1"]));
  assert.equal(new Set(keys).size, 40);
});

test("a fetch of one's own takes the place of the runtime's", async () => {
  const { fetch, requests } = recorded();
  const sent = await new Client(KEY, { baseUrl: URL_UNUSED, fetch }).send(EMAIL, { idempotencyKey: "order-1" });
  assert.ok(sent.replayed);
  assert.equal(requests[0]?.url, "https://mail.acme.example/emails");
  assert.equal(requests[0]?.init.redirect, "manual");
  assert.equal(new Headers(requests[0]?.init.headers).get("Idempotency-Key"), "order-1");
  assert.deepEqual(bodyOf(requests[0]?.init), EMAIL);
});

test("what it throws is the cause of an error of ours", async () => {
  const thrown = new TypeError("no route");
  const fetch: Fetch = () => Promise.reject(thrown);
  const client = new Client(KEY, { baseUrl: URL_UNUSED, fetch, retry: "none" });
  await assert.rejects(client.get("em_1"), (error) => {
    assert.ok(error instanceof ConnectionFailedError && error instanceof PosthouseError && error instanceof Error);
    assert.equal(error.cause, thrown);
    assert.match(error.message, /no route/);
    return error.isRetryable;
  });
});

test("an attempt ends in time even if fetch doesn't heed the signal", async () => {
  const fetch: Fetch = () => new Promise(() => undefined);
  const client = new Client(KEY, { baseUrl: URL_UNUSED, fetch, timeoutSeconds: 0.05, retry: "none" });
  await assert.rejects(client.get("em_1"), AttemptTimeoutError);
});

test("a time-out longer than a timer can take is none that ends at once", async () => {
  const { fetch } = recorded();
  const slow: Fetch = async (url, init) => {
    await new Promise((resolve) => setTimeout(resolve, 20));
    return fetch(url, init);
  };
  const client = new Client(KEY, { baseUrl: URL_UNUSED, fetch: slow, timeoutSeconds: 1e9, retry: "none" });
  assert.equal((await client.send(EMAIL)).id, "em_1");
});

test("an aborted signal ends an attempt, and its reason is thrown", async () => {
  const controller = new AbortController();
  let seen: AbortSignal | null | undefined;
  const fetch: Fetch = (_, init) => {
    seen = init.signal;
    controller.abort(new Error("enough"));
    return new Promise(() => undefined);
  };
  const client = new Client(KEY, { baseUrl: URL_UNUSED, fetch });
  await assert.rejects(client.send(EMAIL, { signal: controller.signal }), /^Error: enough$/);
  assert.ok(seen?.aborted);
});

test("an aborted signal ends a sleep", async () => {
  const controller = new AbortController();
  const fetch: Fetch = async () => Response.json({}, { status: 503, headers: { "Retry-After": "20" } });
  const debug = (): unknown => setTimeout(() => controller.abort(new Error("enough")), 10);
  const client = new Client(KEY, { baseUrl: URL_UNUSED, fetch, debug });
  await assert.rejects(client.wait("em_1", { signal: controller.signal }), /^Error: enough$/);
});

test("a signal that was aborted before sends nothing", async () => {
  const { fetch, requests } = recorded();
  const client = new Client(KEY, { baseUrl: URL_UNUSED, fetch });
  await assert.rejects(client.send(EMAIL, { signal: AbortSignal.abort() }), { name: "AbortError" });
  assert.deepEqual(requests, []);
});

test("no secret is printed", async () => {
  const printed: string[] = [];
  const failing: Fetch = async () => Response.json({ error: "No.", code: "unauthorized" }, { status: 401 });
  for (const credential of [KEY, { username: "acme", password: PASSWORD }]) {
    const client = new Client(credential, { baseUrl: URL_UNUSED, fetch: failing, debug: (event) => show(event) });
    const error: unknown = await client.send(EMAIL).catch((thrown: unknown) => thrown);
    assert.ok(error instanceof ApiError);
    show(client);
    show(error);
    show({ ...client });
  }
  const secrets = [KEY, PASSWORD, Buffer.from(`acme:${PASSWORD}`).toString("base64")];
  assert.deepEqual(secrets.filter((one) => printed.join("\n").includes(one)), []);
  assert.match(printed.join("\n"), /Client \{ baseUrl: 'https:\/\/mail\.acme\.example' \}/);

  function show(value: unknown): void {
    // console.log prints as inspect does.
    printed.push(inspect(value), inspect(value, { showHidden: true, depth: null, getters: true }));
    printed.push(JSON.stringify(value), String(value));
  }
});

test("what is missing is refused, whatever the types say", () => {
  const missing = undefined as unknown as string;
  assert.throws(() => new Client(missing, { baseUrl: URL_UNUSED }), InvalidArgumentError);
  assert.throws(() => new Client(null as unknown as string, { baseUrl: URL_UNUSED }), InvalidArgumentError);
  assert.throws(() => new Client(KEY, { baseUrl: missing }), InvalidArgumentError);
  const half = { username: "acme", password: missing };
  assert.throws(() => new Client(half, { baseUrl: URL_UNUSED }), InvalidArgumentError);
  assert.throws(() => new Client(KEY, { baseUrl: URL_UNUSED, timeoutSeconds: NaN }), InvalidArgumentError);
  assert.throws(() => new Client(KEY, { baseUrl: URL_UNUSED, retry: { attemptsMax: NaN } }), InvalidArgumentError);
});

test("an email says its time, its metadata and that it is forgotten", async () => {
  const { fetch, requests } = recorded();
  const client = new Client(KEY, { baseUrl: URL_UNUSED, fetch });
  await client.send({ ...EMAIL, sendAt: new Date("2030-06-01T11:00:00+02:00"), metadata: { order: "1001" }, content: "forget" });
  const written = bodyOf(requests[0]?.init);
  assert.equal(written["send_at"], "2030-06-01T09:00:00.000Z");
  assert.deepEqual(written["metadata"], { order: "1001" });
  assert.equal(written["content"], "forget");
});

test("what the service would never see is refused", async () => {
  const { fetch, requests } = recorded();
  const client = new Client(KEY, { baseUrl: URL_UNUSED, fetch });
  const unusable: object[] = [
    { reply_to: "support@acme.example" },
    { template: "welcome", variables: { total: NaN } },
    { attachments: [{ filename: "a.txt", content: "text" }] },
    { attachments: [{ filename: "../a.txt", content: new Uint8Array(1) }] },
  ];
  for (const fields of unusable) {
    await assert.rejects(client.send({ ...EMAIL, ...fields }), InvalidArgumentError, JSON.stringify(fields));
  }
  assert.deepEqual(requests, []);
});

test("streams of every kind are attached", async () => {
  const { fetch, requests } = recorded();
  const bytes = new Uint8Array(100_000).map((_, index) => index);
  const attachments = await Promise.all([
    attachmentFromStream(new Blob([bytes]), "1.csv"),
    attachmentFromStream(new Blob([bytes]).stream() as ReadableStream<Uint8Array>, "2.csv"),
    attachmentFromStream(Readable.from([bytes.subarray(0, 7), bytes.subarray(7)]), "3.csv"),
    { filename: "4.csv", content: bytes.buffer },
    { filename: "5.csv", content: Buffer.from(bytes) },
  ]);
  const email = { ...EMAIL, attachments };
  const client = new Client(KEY, { baseUrl: URL_UNUSED, fetch });
  await client.send(email);
  await client.send(email);
  const content = Buffer.from(bytes).toString("base64");
  const expected = attachments.map(({ filename }) => ({ filename, content, content_type: "text/csv" }));
  assert.deepEqual(requests.map(({ init }) => bodyOf(init)["attachments"]), [expected, expected]);
});

test("a stream of texts is refused", async () => {
  const texts = Readable.from(["a", "b"]) as AsyncIterable<Uint8Array>;
  await assert.rejects(attachmentFromStream(texts, "a.txt"), InvalidArgumentError);
});

test("a file is found by its URL, and one that isn't there is the runtime's error", async () => {
  const attachment = await attachmentFromFile(new URL("package.json", root), { contentId: "it" });
  assert.equal(attachment.filename, "package.json");
  assert.deepEqual(Buffer.from(attachment.content as Uint8Array), readFileSync(new URL("package.json", root)));
  await assert.rejects(attachmentFromFile("/nowhere/at/all.txt"), { code: "ENOENT" });
});

test("a webhook's body may be text, but not what was made of it", async () => {
  const body = '{"id":"ev_3","type":"email.failed","created_at":"2026-11-15T07:00:00Z","data":{"email_id":"em_1"}}';
  const secret = "whsec_of_this_test";
  const { createHmac } = await import("node:crypto");
  const header = `t=1794726000,v1=${createHmac("sha256", secret).update(`1794726000.${body}`).digest("hex")}`;
  const event = await verifyWebhook(body, header, secret, { now: 1_794_726_000 });
  assert.equal(event.data.emailId, "em_1");
  assert.equal(event.createdAt.toISOString(), "2026-11-15T07:00:00.000Z");
  const parsed = JSON.parse(body) as string;
  await assert.rejects(verifyWebhook(parsed, header, secret), InvalidArgumentError);
  await assert.rejects(verifyWebhook(body, header, undefined as unknown as string), InvalidArgumentError);
  const late = verifyWebhook(body, header, secret, { now: NaN });
  await assert.rejects(late, { constructor: WebhookVerificationError, reason: "outside_tolerance" });
});

test("errors carry their names, also in stack traces", () => {
  const error = new ApiError("No.", { status: 402, code: "insufficient_credits" });
  assert.equal(String(error), "ApiError: No.");
  assert.match(error.stack ?? "", /^ApiError: No\./);
  assert.ok(error.isInsufficientCredits && !error.isRetryable);
});

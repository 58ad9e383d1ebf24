/** The only place that makes requests: adds the token, records the requests, waits for sign-in after a 401. */
import createClient from 'openapi-fetch'
import { hidesBody, type MadeRequest } from '../rules/by-api'
import { Refusal } from '../rules/refusal'
import { text } from '../words/client'
import type { paths } from './schema'
import { Store } from './store'

/** How requests are authorized; session.ts sets it. */
export const access: {
  token: string | null
  /** The account that an operator impersonates. */
  impersonated: string | null
  /** Resolves when there is a new token; rejects if the user leaves instead. */
  renew: () => Promise<void>
} = { token: null, impersonated: null, renew: () => Promise.reject(new Error('There is no session.')) }

/** Whether the service answered the last request. */
export const reachable = new Store(true)

const REQUESTS_MAX = 50
/** The requests that the page made, newest last; the router empties it. */
export const made = new Store<readonly MadeRequest[]>([])

const WITHOUT_TOKEN = /^\/v1\/(auth\/(login|renew|link|forgot|reset)|invitations\/accept|service)$/
const NOT_SHOWN = /^\/v1\/(live|service|auth\/(me|renew|switch))$/

async function send(request: Request): Promise<Response> {
  const { pathname } = new URL(request.url)
  const isPublic = WITHOUT_TOKEN.test(pathname)
  const again = request.clone()
  const body = await request.clone().text()
  const { token, impersonated } = access
  let response = await attempt(request, isPublic ? null : token)
  if (response.status === 401 && !isPublic) {
    // Another request may have renewed the token meanwhile.
    if (access.token === token) await access.renew()
    // A customer's pages must not show responses to the operator's own token.
    if (access.impersonated === impersonated) response = await attempt(again, access.token)
  }
  record(request, body, response)
  return response
}

async function attempt(request: Request, token: string | null): Promise<Response> {
  if (token !== null && !request.headers.has('Authorization')) request.headers.set('Authorization', `Bearer ${token}`)
  try {
    const response = await fetch(request)
    reachable.set(true)
    return response
  } catch (error) {
    if (request.signal.aborted) throw error
    reachable.set(false)
    throw new Refusal(text.unreachable, 0, 'unreachable', null)
  }
}

function record(request: Request, body: string, response: Response): void {
  const { pathname, search } = new URL(request.url)
  if (NOT_SHOWN.test(pathname)) return
  const shown = body === '' ? null : hidesBody(pathname) ? ({ kind: 'hidden' } as const) : ({ kind: 'json', text: body } as const)
  const entry: MadeRequest = {
    method: request.method, path: pathname + search, body: shown,
    status: response.status, requestId: response.headers.get('X-Request-ID'),
  }
  const others = made.get().filter((other) => other.method !== entry.method || other.path !== entry.path)
  made.set([...others, entry].slice(-REQUESTS_MAX))
}

export const api = createClient<paths>({
  baseUrl: typeof location === 'undefined' ? 'http://localhost' : location.origin,
  fetch: send,
  credentials: 'same-origin',
  cache: 'no-store',
  redirect: 'error',
})
export type Api = typeof api

interface Answer<T> {
  readonly data?: T | undefined
  readonly error?: unknown
  readonly response: Response
}

/** Returns the body of the response; throws a refusal. */
export async function answered<T>(asked: Promise<Answer<T>>): Promise<T> {
  const { data, error, response } = await asked
  if (!response.ok) throw refusal(response, error)
  return data as T
}

function refusal(response: Response, error: unknown): Refusal {
  const given = typeof error === 'object' && error !== null ? (error as Record<string, unknown>) : {}
  const retryAfter = Number(response.headers.get('Retry-After'))
  return new Refusal(
    typeof given.error === 'string' ? given.error : text.status(response.status),
    response.status,
    typeof given.code === 'string' ? given.code : 'unknown',
    typeof given.request_id === 'string' ? given.request_id : response.headers.get('X-Request-ID'),
    retryAfter > 0 ? retryAfter : null,
    response.headers.get('Second-Factor') === 'required',
  )
}

/** A file (CSV, raw mail, attachment) for the user to save. */
export async function download(path: string, name: string): Promise<void> {
  const response = await send(new Request(new URL(path, location.origin)))
  if (!response.ok) throw refusal(response, await response.json().catch(() => null))
  const url = URL.createObjectURL(await response.blob())
  const anchor = document.createElement('a')
  anchor.href = url
  anchor.download = name
  anchor.click()
  URL.revokeObjectURL(url)
}

/** Text of any kind, for example a raw message. */
export async function readText(path: string): Promise<string> {
  const response = await send(new Request(new URL(path, location.origin)))
  if (!response.ok) throw refusal(response, await response.json().catch(() => null))
  return response.text()
}

/** A file as a `data:` address, with the type that the caller names. */
export async function readDataUrl(path: string, type: string): Promise<string> {
  const response = await send(new Request(new URL(path, location.origin)))
  if (!response.ok) throw refusal(response, await response.json().catch(() => null))
  const bytes = new Uint8Array(await response.arrayBuffer())
  let text = ''
  for (const byte of bytes) text += String.fromCharCode(byte)
  return `data:${type};base64,${btoa(text)}`
}

/** Sends a file and reads the answer piece by piece. The file is not recorded for "by API". */
export async function* upload(path: string, file: File, type: string, signal: AbortSignal): AsyncGenerator<string> {
  const request = () => new Request(new URL(path, location.origin), { method: 'POST', headers: { 'Content-Type': type }, body: file, signal })
  let response = await attempt(request(), access.token)
  if (response.status === 401) {
    await access.renew()
    response = await attempt(request(), access.token)
  }
  if (!response.ok) throw refusal(response, await response.json().catch(() => null))
  yield* pieces(response)
}

async function* pieces(response: Response): AsyncGenerator<string> {
  const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader()
  while (reader !== undefined) {
    const { done, value } = await reader.read()
    if (done) return
    yield value
  }
}

/** The bytes of a stream, until it ends or `signal` aborts. */
export async function* stream(path: string, signal: AbortSignal): AsyncGenerator<string> {
  const response = await send(new Request(new URL(path, location.origin), { signal }))
  if (!response.ok) throw refusal(response, await response.json().catch(() => null))
  yield* pieces(response)
}

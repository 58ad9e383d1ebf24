/** The session: its token is only in memory. A remembered session is renewed by a cookie that scripts can't read. */
import { again } from '../rules/again'
import { isTemporary, Refusal } from '../rules/refusal'
import { access, answered, api } from './client'
import type { components } from './schema'
import { Store } from './store'

export type Me = components['schemas']['MeResponse']
export type SignIn = components['schemas']['LoginRequest']
type Token = components['schemas']['LoginResponse']

export type Session =
  /** At load, until the cookie has been tried. */
  | { readonly state: 'unknown' }
  | { readonly state: 'signed out' }
  | { readonly state: 'signed in'; readonly me: Me }
  /** The page stays as it is, below the sign-in dialog. */
  | { readonly state: 'ended'; readonly me: Me }

export const session = new Store<Session>({ state: 'unknown' })

// The token of a remembered session ends after 15 minutes; it is renewed this long before.
const RENEW_BEFORE_SECONDS = 90
const RENEW_LOCK = 'posthouse-renew'
// A service that is briefly unreachable must not sign the user out.
const AGAIN_MS = 3_000

let account: string | null = null
let timer: ReturnType<typeof setTimeout> | undefined
let waiting: { readonly resolve: () => void; readonly reject: (error: Error) => void }[] = []
let renewal: Promise<boolean> | null = null
/** The operator's own session, during an impersonation. */
let own: { readonly token: string | null; readonly me: Me } | null = null

/** Try the cookie, for the account that the address names. */
export async function open(wanted: string | null): Promise<void> {
  account = wanted
  if (!(await renewed())) session.set({ state: 'signed out' })
  else await again(load, AGAIN_MS, isTemporary)
}

export async function signIn(given: SignIn): Promise<void> {
  await take(await answered(api.POST('/v1/auth/login', { body: given })), given.remember ?? false)
}

/** With the one-time link of `posthouse dev` or of an operator. */
export async function signInByLink(token: string, code: string | null): Promise<void> {
  await take(await answered(api.POST('/v1/auth/link', { body: { token, code, remember: true } })), true)
}

/** View a customer's account, with a read-only token; only in this tab. */
export async function impersonate(wanted: string): Promise<string> {
  const present = session.get()
  const { token, account_id: impersonated } = await answered(api.POST('/v1/operator/accounts/{account}/impersonation', { params: { path: { account: wanted } } }))
  const me = await answered(api.GET('/v1/auth/me', { headers: { Authorization: `Bearer ${token}` } }))
  await renewal
  if (present.state !== 'signed in') throw new Refusal('', 401, 'unauthorized', null)
  own = { token: access.token, me: present.me }
  // The operator's own token must not replace that of the impersonation.
  clearTimeout(timer)
  access.token = token
  access.impersonated = impersonated
  session.set({ state: 'signed in', me })
  return impersonated
}

/** Returns the account that the operator came from. */
export async function endImpersonation(): Promise<string> {
  const from = own?.me.account_id ?? ''
  // Its token is not valid any longer, and the customer's banner goes.
  if (own !== null) await answered(api.POST('/v1/auth/logout')).catch(() => undefined)
  await toOwnSession()
  return from
}

async function toOwnSession(): Promise<void> {
  if (own === null) return
  const { token, me } = own
  own = null
  access.token = token
  access.impersonated = null
  session.set({ state: 'signed in', me })
  // The token of a remembered session may have ended meanwhile.
  await renewed()
}

export async function signOut(): Promise<void> {
  await endImpersonation()
  await answered(api.POST('/v1/auth/logout')).catch(() => undefined)
  forget()
  broadcast?.postMessage('signed out')
}

/** Gets a token for another account of the user, only in this tab. */
export async function switchTo(wanted: string): Promise<void> {
  const answer = await answered(api.POST('/v1/auth/switch', { body: { account_id: wanted } }))
  account = wanted
  hold(answer)
  await load()
}

/** Reads the user again, for example after a change of the second factor. */
export async function load(): Promise<void> {
  const me = await answered(api.GET('/v1/auth/me'))
  session.set({ state: 'signed in', me })
}

/** The user chose to leave instead of signing in again. */
export function leave(): void {
  forget()
}

async function take(answer: Token, isRemembered: boolean): Promise<void> {
  const before = session.get()
  hold(answer)
  if (account !== null) await toAccount(account)
  const me = await answered(api.GET('/v1/auth/me'))
  account = me.account_id
  if (isRemembered) broadcast?.postMessage(me.user.id)
  if (before.state === 'ended' && before.me.user.id !== me.user.id) {
    location.reload()
    return
  }
  session.set({ state: 'signed in', me })
  for (const { resolve } of waiting) resolve()
  waiting = []
}

/** A login opens the account that was used last; the address may name another. */
async function toAccount(wanted: string): Promise<void> {
  try {
    hold(await answered(api.POST('/v1/auth/switch', { body: { account_id: wanted } })))
  } catch (error) {
    if (!(error instanceof Refusal && (error.status === 404 || error.status === 400))) throw error
    account = null
  }
}

function hold(answer: Token): void {
  access.token = answer.token
  clearTimeout(timer)
  const seconds = (new Date(answer.expires_at).getTime() - Date.now()) / 1000 - RENEW_BEFORE_SECONDS
  // Sessions that are not remembered last for hours: nothing renews them, and a 401 leads to the dialog.
  if (seconds < 3600) timer = setTimeout(() => void renewed(), Math.max(seconds, 5) * 1000)
}

function forget(): void {
  own = null
  access.token = null
  clearTimeout(timer)
  for (const { reject } of waiting) reject(new Refusal('', 401, 'unauthorized', null))
  waiting = []
  session.set({ state: 'signed out' })
}

/** Whether the cookie gave another token. Tabs take turns, and the requests of a tab share one try. */
function renewed(): Promise<boolean> {
  const turn = async () => await navigator.locks.request(RENEW_LOCK, renew)
  renewal ??= turn().finally(() => {
    renewal = null
  })
  return renewal
}

async function renew(): Promise<boolean> {
  try {
    hold(await again(() => answered(api.POST('/v1/auth/renew', { body: { account_id: account } })), AGAIN_MS, isTemporary))
    return true
  } catch (error) {
    if (!(error instanceof Refusal && error.status === 404 && account !== null)) return false
    // The user is not a member of the account that the address names: the shell says so, in one of their accounts.
    account = null
    return renew()
  }
}

access.renew = async () => {
  if (own !== null) {
    await toOwnSession()
    return
  }
  if (await renewed()) return
  const present = session.get()
  if (present.state !== 'signed in' && present.state !== 'ended') {
    throw new Refusal('', 401, 'unauthorized', null)
  }
  access.token = null
  session.set({ state: 'ended', me: present.me })
  await new Promise<void>((resolve, reject) => waiting.push({ resolve, reject }))
}

// Signing out in one tab signs out all tabs: the session is over for each of them. So does a remembered session of
// another user, whose cookie would renew them.
const broadcast = typeof BroadcastChannel === 'undefined' ? null : new BroadcastChannel('posthouse-session')
broadcast?.addEventListener('message', ({ data }: MessageEvent<string>) => {
  const present = session.get()
  if (present.state === 'signed in' && present.me.user.id !== data) forget()
})

/** The dashboard's own addresses, and filters in them. */

export const BASE = '/dashboard'
const ACCOUNT_ID = /^ac_[0-9a-z]{26}$/

export const isAccountId = (text: string): boolean => ACCOUNT_ID.test(text)

/** The account that an address names; null for sign-in and the bare address. */
export function accountOf(path: string): string | null {
  const [, base, account] = path.split('/')
  return base === BASE.slice(1) && account !== undefined && isAccountId(account) ? account : null
}

/** The same page in another account; pages of single things lead to their list. */
export function inAccount(path: string, account: string): string {
  const [, , , page] = path.split('/')
  return `/${account}/${page ?? 'overview'}`
}

/** Where to go after sign-in: only into the dashboard itself. */
export function returnPath(given: string | undefined): string | null {
  if (given === undefined || !given.startsWith('/') || given.startsWith('//') || given.includes('\\')) return null
  return given.startsWith('/login') ? null : given
}

/** The token after the # of a link in an email; `link=` marks a one-time sign-in. */
export function tokenOf(hash: string): { readonly kind: 'link' | 'token'; readonly token: string } | null {
  const text = hash.replace(/^#/, '')
  if (text === '') return null
  if (text.startsWith('link=')) return text.length > 5 ? { kind: 'link', token: text.slice(5) } : null
  return { kind: 'token', token: text }
}

/** Keeps those values of an address's search that are texts and named; drops the rest. */
export function pickTexts<Name extends string>(search: unknown, names: readonly Name[]): Partial<Record<Name, string>> {
  const picked: Partial<Record<Name, string>> = {}
  if (typeof search !== 'object' || search === null) return picked
  for (const name of names) {
    const value = (search as Record<string, unknown>)[name]
    if (typeof value === 'string' && value !== '') picked[name] = value
    else if (typeof value === 'number' || typeof value === 'boolean') picked[name] = String(value)
  }
  return picked
}

/** `?status=failed&after=…`, in plain texts: no JSON in the address. */
export function parseSearch(search: string): Record<string, string> {
  return Object.fromEntries(new URLSearchParams(search))
}

export function writeSearch(search: Readonly<Record<string, unknown>>): string {
  const texts = Object.entries(search).filter(([, value]) => value !== undefined && value !== null && value !== '')
  const written = new URLSearchParams(texts.map(([name, value]) => [name, String(value)])).toString()
  return written === '' ? '' : `?${written}`
}

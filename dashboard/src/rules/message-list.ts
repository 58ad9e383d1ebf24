/** The list of messages: its filters, and how the newest page is joined to older ones. */
import type { MessageFilters } from './search-box'

export const FILTERS = [
  'status', 'state', 'recipient', 'sender', 'subject', 'tag', 'template', 'source', 'credential_id', 'request_id', 'after', 'before',
] as const satisfies readonly (keyof MessageFilters)[]
export type FilterName = (typeof FILTERS)[number]
export type Filters = Partial<Record<FilterName, string>>
export type FilterChange = (changed: Partial<Record<FilterName, string | undefined>>) => void

export const STATUSES = ['queued', 'delivered', 'partial', 'failed'] as const
/** What is more exact than a status. */
export const STATES = ['scheduled', 'bounced', 'suppressed', 'cancelled'] as const
export const SOURCES = ['api', 'smtp', 'test'] as const
export const PERIODS = { hour: 3_600, day: 86_400, week: 604_800, month: 2_592_000 } as const
export type Period = keyof typeof PERIODS

/** After this many empty pages in a row, the user is asked whether to continue the search. */
export const EMPTY_PAGES_MAX = 20

/** Leaves out values that the service would refuse: a shared address may contain anything. */
export function queryOf(filters: Filters): Filters {
  const query: Filters = {}
  for (const name of FILTERS) {
    const value = filters[name]?.trim()
    if (value === undefined || value === '') continue
    if (name === 'status' && !(STATUSES as readonly string[]).includes(value)) continue
    if (name === 'state' && !(STATES as readonly string[]).includes(value)) continue
    if (name === 'source' && !(SOURCES as readonly string[]).includes(value)) continue
    if (name === 'after' || name === 'before') {
      const at = new Date(value)
      if (!Number.isNaN(at.getTime())) query[name] = at.toISOString()
    } else query[name] = value
  }
  return query
}

/** The beginning of a period that ends now, to the minute. */
export function periodStart(period: Period, now: Date): string {
  const at = new Date(now.getTime() - PERIODS[period] * 1000)
  at.setUTCSeconds(0, 0)
  return at.toISOString()
}

/** For `<input type="datetime-local">`: the reader's own time, to the minute. */
export function localInput(at: string | undefined): string {
  const time = new Date(at ?? '')
  if (Number.isNaN(time.getTime())) return ''
  const local = new Date(time.getTime() - time.getTimezoneOffset() * 60_000)
  return local.toISOString().slice(0, 16)
}

/** Back from such an input; undefined for an empty or impossible one. */
export function fromLocalInput(typed: string): string | undefined {
  const time = new Date(typed)
  return typed === '' || Number.isNaN(time.getTime()) ? undefined : time.toISOString()
}

interface Listed {
  readonly id: string
}

/**
 * Merges the newest page, read again, into a list of several pages: rows in both take its state; `newer` rows come
 * before the list's first and are not put in, since what the user reads would move. `isGap`: there are even more.
 */
export function join<Item extends Listed>(items: readonly Item[], newest: readonly Item[]): {
  readonly items: readonly Item[]
  readonly newer: number
  readonly isGap: boolean
} {
  const [first] = items
  if (first === undefined || newest.length === 0) return { items, newer: 0, isGap: false }
  const place = newest.findIndex(({ id }) => id === first.id)
  if (place < 0) return { items, newer: newest.length, isGap: true }
  const fresh = newest.slice(place)
  return { items: [...fresh, ...items.slice(fresh.length)], newer: place, isGap: false }
}

/** How many of the last pages are empty. */
export function emptyPages(pages: readonly { readonly messages: readonly unknown[] }[]): number {
  const last = pages.findLastIndex(({ messages }) => messages.length > 0)
  return pages.length - 1 - last
}

/** The line before the first message of a day, which was accepted at `at`. */
export interface Day {
  readonly day: string
  readonly at: string
}

/** The items with a line before the first of each day. */
export function withDays<Item extends { readonly created_at: string }>(items: readonly Item[], dayOf: (at: string) => string): readonly (Item | Day)[] {
  const lines: (Item | Day)[] = []
  let last: string | null = null
  for (const item of items) {
    const day = dayOf(item.created_at)
    if (day !== last) lines.push({ day, at: item.created_at })
    lines.push(item)
    last = day
  }
  return lines
}

/** What `POST /v1/resends` sends again: these messages, or those with a tag in a range of time. */
export interface ToSendAgain {
  readonly ids?: readonly string[]
  readonly tag?: string
  readonly range?: { readonly since: string; readonly until: string | null }
}

export const AGAIN_MOST = 500

/** Null if neither can be said; without ids, all that the filters choose. */
export function toSendAgain(ids: readonly string[] | null, { tag, after, before, ...others }: Filters, now: Date): ToSendAgain | null {
  if (ids !== null) return ids.length <= AGAIN_MOST ? { ids } : null
  if (Object.entries(others).some(([name, value]) => !(name === 'status' && value === 'failed'))) return null
  return { tag: tag ?? '', range: { since: after ?? periodStart('month', now), until: before ?? null } }
}

const cell = (value: string): string => `"${(/^[=+\-@\t\r]/.test(value) ? `'${value}` : value).replaceAll('"', '""')}"`

/** A table as the service exports it: nothing in it is a formula. */
export const csv = (rows: readonly (readonly string[])[]): string => rows.map((row) => `${row.map(cell).join(',')}\r\n`).join('')

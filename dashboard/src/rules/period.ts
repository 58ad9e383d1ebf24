/** The time that the overview shows: what is requested for it, its hours or days, and the same time before it. */
import { type Counts, share, sum } from './figures'

export const RANGES = ['today', '24h', '7d', '30d', 'dates'] as const
export type Range = (typeof RANGES)[number]

export const DAYS_MAX = 30
/** Reasons, providers, domains and tags are kept for this long. */
export const DETAILS_DAYS = 40
/** Hours are kept for eight days, of which the first is not whole. */
const HOURLY_DAYS = 7

const HOUR = 3_600_000
const DAY = 24 * HOUR

/** The parameters of `GET /v1/usage` and, without `by`, of `GET /v1/reasons`. */
export type Days = { readonly days: number } | { readonly from: string; readonly to: string }

export interface Period {
  readonly range: Range
  readonly days: Days
  readonly by: 'hour' | 'day'
}

const COUNTS: Readonly<Record<Exclude<Range, 'dates'>, number>> = { today: 1, '24h': 2, '7d': 7, '30d': 30 }

export const dayOf = (at: Date): string => at.toISOString().slice(0, 10)
export const daysBefore = (day: string, count: number): string => dayOf(new Date(Date.parse(`${day}T00:00:00Z`) - count * DAY))

const isDay = (text: string | undefined): text is string =>
  text !== undefined && /^\d{4}-\d\d-\d\d$/.test(text) && !Number.isNaN(Date.parse(text)) && dayOf(new Date(text)) === text

/** The range that an address names. Dates that are impossible, or whose details are no longer kept, are the last seven days. */
export function periodOf({ range, from, to }: { range?: string; from?: string; to?: string }, today: string): Period {
  const named = RANGES.find((name) => name === range) ?? '7d'
  if (named !== 'dates') return { range: named, days: { days: COUNTS[named] }, by: COUNTS[named] <= 2 ? 'hour' : 'day' }
  const isPossible = isDay(from) && isDay(to) && from <= to && to <= today && from >= daysBefore(today, DETAILS_DAYS) && from > daysBefore(to, DAYS_MAX)
  const days = isPossible ? { from, to } : { from: daysBefore(today, 6), to: today }
  return { range: named, days, by: days.from === days.to && days.from >= daysBefore(today, HOURLY_DAYS) ? 'hour' : 'day' }
}

/** The other date follows one that is changed, so that the range stays possible. */
export function changedDates({ from, to }: { readonly from: string; readonly to: string }, name: 'from' | 'to', day: string): { readonly from: string; readonly to: string } {
  if (name === 'from') return { from: day, to: to < day ? day : to > daysBefore(day, 1 - DAYS_MAX) ? daysBefore(day, 1 - DAYS_MAX) : to }
  return { from: from > day ? day : from <= daysBefore(day, DAYS_MAX) ? daysBefore(day, DAYS_MAX - 1) : from, to: day }
}

interface Counted extends Counts {
  readonly test: Counts
}

interface Usage {
  readonly days: readonly (Counted & { readonly day: string })[]
  readonly hours: readonly (Counted & { readonly hour: string })[] | null
}

/** An hour or a day. */
export interface Row extends Counted {
  readonly start: string
  readonly end: string
}

const row = (counted: Counted, start: string, length: number): Row => {
  const { accepted, delivered, bounced, failed, open, test } = counted
  const at = new Date(start)
  return { accepted, delivered, bounced, failed, open, test, start: at.toISOString(), end: new Date(at.getTime() + length).toISOString() }
}

/** Oldest first, as on an axis. */
export function rowsOf({ days, hours }: Usage, range: Range): readonly Row[] {
  const rows = hours === null ? days.map((day) => row(day, `${day.day}T00:00:00Z`, DAY)) : hours.map((hour) => row(hour, hour.hour, HOUR))
  return (range === '24h' ? rows.slice(0, 24) : rows).toReversed()
}

/** By how many days the time before is earlier: hours are compared with those of the day before. */
const shiftDays = ({ days, hours }: Usage): number => (hours === null ? days.length : 1)

/** What is requested for the time before; null without days. */
export function daysOfBefore(usage: Usage): { readonly from: string; readonly to: string } | null {
  const [last, first] = [usage.days[0], usage.days.at(-1)]
  return last === undefined || first === undefined ? null : { from: daysBefore(first.day, shiftDays(usage)), to: daysBefore(last.day, shiftDays(usage)) }
}

export interface Before {
  readonly from: string
  readonly to: string
  /** Of the hours or days that are over, and of the same ones before. */
  readonly accepted: number
  readonly acceptedBefore: number
  readonly shares: Readonly<Record<'delivered' | 'bounced' | 'failed', number | null>>
  /** Whether an hour or day that is not over is not compared. */
  readonly isLeftOut: boolean
}

/** Null unless the account existed during all of the time before, and anything can be compared. */
export function before(usage: Usage, range: Range, earlier: Usage, countedAt: string | null, createdAt: string): Before | null {
  const rows = rowsOf(usage, range)
  const over = rows.filter(({ end }) => countedAt !== null && Date.parse(end) <= Date.parse(countedAt))
  const starts = new Set(over.map(({ start }) => Date.parse(start) - shiftDays(usage) * DAY))
  const same = rowsOf(earlier, 'dates').filter(({ start }) => starts.has(Date.parse(start)))
  const [first, last] = [same[0], same.at(-1)]
  if (first === undefined || last === undefined || same.length < over.length || Date.parse(first.start) < Date.parse(createdAt)) return null
  const [now, then] = [sum(over), sum(same)]
  if (now.accepted === 0 && then.accepted === 0) return null
  const of = (name: 'delivered' | 'bounced' | 'failed') => share(then[name], then.accepted)
  return {
    from: first.start, to: last.start, accepted: now.accepted, acceptedBefore: then.accepted, isLeftOut: over.length < rows.length,
    shares: { delivered: of('delivered'), bounced: of('bounced'), failed: of('failed') },
  }
}

/** From when on accepted mail may not be counted yet; null if all that these rows show is counted. */
export function uncountedSince(rows: readonly Row[], countedAt: string | null, now: Date): string | null {
  const [start, end] = [rows[0]?.start, rows.at(-1)?.end]
  if (start === undefined || end === undefined || Date.parse(end) <= now.getTime()) return null
  return countedAt === null || Date.parse(countedAt) < Date.parse(start) ? start : countedAt
}

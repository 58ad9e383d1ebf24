import { describe, expect, it } from 'vitest'
import { before, changedDates, daysBefore, daysOfBefore, periodOf, rowsOf, uncountedSince } from './period'

const TODAY = '2026-11-20'
const NONE = { accepted: 0, delivered: 0, bounced: 0, failed: 0, open: 0 }
const counts = (accepted: number, bounced = 0) => ({ ...NONE, accepted, bounced, delivered: accepted - bounced, test: { ...NONE, accepted: 1 } })

/** Newest first, as the service answers. */
const byDay = (last: string, ...accepted: readonly number[]) => ({ days: accepted.map((count, place) => ({ day: daysBefore(last, place), ...counts(count, Math.floor(count / 10)) })), hours: null })
const byHour = (newest: string, days: number, count: number, accepted: (place: number) => number) => ({
  days: Array.from({ length: days }, (_, place) => ({ day: daysBefore(newest.slice(0, 10), place), ...counts(0) })),
  hours: Array.from({ length: count }, (_, place) => ({ hour: new Date(Date.parse(newest) - place * 3_600_000).toISOString(), ...counts(accepted(place)) })),
})

describe('a range', () => {
  it('is by hour if it is short', () => {
    expect(periodOf({}, TODAY)).toEqual({ range: '7d', days: { days: 7 }, by: 'day' })
    expect(periodOf({ range: 'today' }, TODAY)).toEqual({ range: 'today', days: { days: 1 }, by: 'hour' })
    expect(periodOf({ range: '24h' }, TODAY)).toEqual({ range: '24h', days: { days: 2 }, by: 'hour' })
    expect(periodOf({ range: '30d' }, TODAY).by).toBe('day')
    expect(periodOf({ range: 'dates', from: '2026-11-13', to: '2026-11-13' }, TODAY).by).toBe('hour')
    expect(periodOf({ range: 'dates', from: '2026-11-12', to: '2026-11-12' }, TODAY).by).toBe('day')
  })
  it.each([
    ['2026-11-01', '2026-11-20', true],
    ['2026-10-22', '2026-11-20', true],
    ['2026-10-21', '2026-11-20', false],
    ['2026-10-11', '2026-11-01', true],
    ['2026-10-10', '2026-11-01', false],
    ['2026-11-02', '2026-11-01', false],
    ['2026-11-01', '2026-11-21', false],
    ['2026-11-31', '2026-11-20', false],
    ['<b>', '2026-11-20', false],
  ])('from %s to %s is possible: %s', (from, to, isPossible) => {
    expect(periodOf({ range: 'dates', from, to }, TODAY).days).toEqual(isPossible ? { from, to } : { from: '2026-11-14', to: TODAY })
  })
  it('stays possible when one of its dates is changed', () => {
    const dates = { from: '2026-11-01', to: '2026-11-10' }
    expect(changedDates(dates, 'from', '2026-11-05')).toEqual({ from: '2026-11-05', to: '2026-11-10' })
    expect(changedDates(dates, 'from', '2026-11-15')).toEqual({ from: '2026-11-15', to: '2026-11-15' })
    expect(changedDates(dates, 'from', '2026-10-11')).toEqual({ from: '2026-10-11', to: '2026-11-09' })
    expect(changedDates(dates, 'to', '2026-10-15')).toEqual({ from: '2026-10-15', to: '2026-10-15' })
    expect(changedDates({ from: '2026-10-11', to: '2026-10-12' }, 'to', '2026-11-10')).toEqual({ from: '2026-10-12', to: '2026-11-10' })
  })
  it('of 24 hours has 24 bars, the oldest first', () => {
    const rows = rowsOf(byHour('2026-11-20T14:00:00.000Z', 2, 39, (place) => place), '24h')
    expect([rows.length, rows[0]?.start, rows.at(-1)?.end]).toEqual([24, '2026-11-19T15:00:00.000Z', '2026-11-20T15:00:00.000Z'])
    expect([rows.at(-1)?.accepted, rows.at(-1)?.test.accepted]).toEqual([0, 1])
  })
})

describe('the time before', () => {
  const OLD = '2026-01-01T00:00:00Z'
  const now = byDay(TODAY, 5, 30, 20)
  const then = byDay('2026-11-17', 999, 10, 30)

  it('has the same length', () => {
    expect(daysOfBefore(now)).toEqual({ from: '2026-11-15', to: '2026-11-17' })
    expect(daysOfBefore(byHour('2026-11-20T14:00:00.000Z', 2, 39, () => 0))).toEqual({ from: '2026-11-18', to: '2026-11-19' })
    expect(daysOfBefore({ days: [], hours: null })).toBeNull()
  })
  it('leaves out the day that is not over', () => {
    const found = before(now, 'dates', then, `${TODAY}T23:59:00Z`, OLD)
    expect(found).toEqual({
      from: '2026-11-15T00:00:00.000Z', to: '2026-11-16T00:00:00.000Z', accepted: 50, acceptedBefore: 40, isLeftOut: true,
      shares: { delivered: 0.9, bounced: 0.1, failed: 0 },
    })
    const over = before(now, 'dates', then, '2026-11-21T00:00:00Z', OLD)
    expect([over?.accepted, over?.acceptedBefore, over?.isLeftOut]).toEqual([55, 1039, false])
  })
  it('is the same hours of the day before', () => {
    const found = before(
      byHour('2026-11-20T14:00:00.000Z', 2, 39, () => 2), '24h', byHour('2026-11-19T23:00:00.000Z', 2, 48, (place) => (place < 10 ? 1000 : 1)), '2026-11-20T14:20:00Z', OLD,
    )
    expect([found?.accepted, found?.acceptedBefore, found?.from, found?.to]).toEqual([46, 23, '2026-11-18T15:00:00.000Z', '2026-11-19T13:00:00.000Z'])
  })
  it('is not shown unless all of it is known', () => {
    const end = '2026-11-21T00:00:00Z'
    expect(before(now, 'dates', then, end, '2026-11-15T00:00:00Z')).not.toBeNull()
    expect(before(now, 'dates', then, end, '2026-11-15T00:00:01Z')).toBeNull()
    expect(before(now, 'dates', byDay('2026-11-17', 5, 5), end, OLD)).toBeNull()
    expect(before(now, 'dates', then, null, OLD)).toBeNull()
    expect(before(byDay(TODAY, 9), 'dates', byDay('2026-11-19', 9), `${TODAY}T12:00:00Z`, OLD)).toBeNull()
    expect(before(byDay(TODAY, 0), 'dates', byDay('2026-11-19', 0), end, OLD)).toBeNull()
  })
})

describe('mail that may not be counted yet', () => {
  const rows = rowsOf(byDay(TODAY, 0, 0), '7d')
  const now = new Date(`${TODAY}T12:00:00Z`)

  it('was accepted after the count, within the range', () => {
    expect(uncountedSince(rows, `${TODAY}T11:58:00Z`, now)).toBe(`${TODAY}T11:58:00Z`)
    expect(uncountedSince(rows, '2026-11-18T23:59:00Z', now)).toBe('2026-11-19T00:00:00.000Z')
    expect(uncountedSince(rows, null, now)).toBe('2026-11-19T00:00:00.000Z')
  })
  it('is not in a range that is over', () => {
    expect(uncountedSince(rowsOf(byDay('2026-11-19', 0), 'dates'), null, now)).toBeNull()
    expect(uncountedSince([], null, now)).toBeNull()
  })
})

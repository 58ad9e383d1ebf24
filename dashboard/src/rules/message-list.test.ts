import { describe, expect, it } from 'vitest'
import { csv, emptyPages, fromLocalInput, join, localInput, periodStart, queryOf, toSendAgain, withDays } from './message-list'

const rows = (...ids: string[]) => ids.map((id) => ({ id, state: 'old' }))
const fresh = (...ids: string[]) => ids.map((id) => ({ id, state: 'new' }))

describe('filters', () => {
  it('drops what the service would refuse', () => {
    expect(queryOf({ status: 'lost', state: 'failed', source: 'fax', tag: ' ', after: 'never', recipient: ' a@b.example ' })).toEqual({ recipient: 'a@b.example' })
  })
  it('writes times in UTC', () => {
    expect(queryOf({ after: '2026-11-17T01:00:00+01:00' })).toEqual({ after: '2026-11-17T00:00:00.000Z' })
  })
  it('begins a period at a full minute', () => {
    expect(periodStart('hour', new Date('2026-11-17T01:00:42Z'))).toBe('2026-11-17T00:00:00.000Z')
  })
  it('keeps a time through its input', () => {
    const at = '2026-11-17T00:30:00.000Z'
    expect(fromLocalInput(localInput(at))).toBe(at)
    expect(fromLocalInput('')).toBeUndefined()
    expect(localInput('never')).toBe('')
  })
})

describe('the newest page next to a long list', () => {
  it('renews the state of rows that both have', () => {
    expect(join(rows('c', 'b', 'a'), fresh('c', 'b'))).toEqual({ items: [...fresh('c', 'b'), ...rows('a')], newer: 0, isGap: false })
  })
  it('counts newer rows without putting them in', () => {
    expect(join(rows('c', 'b', 'a'), fresh('e', 'd', 'c'))).toEqual({ items: [...fresh('c'), ...rows('b', 'a')], newer: 2, isGap: false })
  })
  it('says that there are more than it knows', () => {
    expect(join(rows('c', 'b'), fresh('z', 'y'))).toEqual({ items: rows('c', 'b'), newer: 2, isGap: true })
  })
  it('leaves an empty list as it is', () => {
    expect(join([], fresh('a'))).toEqual({ items: [], newer: 0, isGap: false })
  })
})

it('counts the empty pages at the end', () => {
  const [full, none] = [{ messages: [1] }, { messages: [] }]
  expect([emptyPages([]), emptyPages([none, none]), emptyPages([none, full]), emptyPages([full, none])]).toEqual([0, 2, 0, 1])
})

it('puts a line before each day', () => {
  const [a, b, c] = ['2026-11-17T09', '2026-11-17T08', '2026-11-16T23'].map((at) => ({ created_at: at }))
  expect(withDays([a, b, c].filter((item) => item !== undefined), (at) => at.slice(0, 10))).toEqual([{ day: '2026-11-17', at: a?.created_at }, a, b, { day: '2026-11-16', at: c?.created_at }, c])
})

it('sends again only what was picked or what the filters choose', () => {
  const now = new Date('2026-11-17T00:00:00Z')
  expect(toSendAgain(null, { status: 'failed', tag: 'x', after: '2026-11-16T00:00:00Z' }, now)).toEqual({ tag: 'x', range: { since: '2026-11-16T00:00:00Z', until: null } })
  expect(toSendAgain(null, {}, now)?.range?.since).toBe('2026-10-18T00:00:00.000Z')
  for (const filters of [{ recipient: 'a@b.example' }, { status: 'delivered' }, { state: 'bounced' }]) expect(toSendAgain(null, filters, now)).toBeNull()
  expect(toSendAgain(['em_1'], { recipient: 'a@b.example' }, now)).toEqual({ ids: ['em_1'] })
  expect(toSendAgain(Array.from({ length: 501 }, String), {}, now)).toBeNull()
})

it('writes a table without formulas', () => {
  expect(csv([['a', 'b "c"'], ['=1+1', '-x']])).toBe('"a","b ""c"""\r\n"\'=1+1","\'-x"\r\n')
})

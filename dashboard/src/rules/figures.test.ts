import { describe, expect, it } from 'vitest'
import { daysLeft, groupReasons, stepsToMark } from './figures'

const day = (name: string, accepted: number) => ({ day: name, accepted, delivered: accepted, bounced: 0, failed: 0, open: 0 })

describe('credits', () => {
  it('last by the mean of whole days since the account exists', () => {
    const days = [day('2026-11-17', 1), day('2026-11-16', 100), day('2026-11-15', 300), day('2026-11-14', 0)]
    expect(daysLeft(1000, days, '2026-11-15T09:00:00Z')).toBe(5)
  })
  it('of a first day last by that day', () => {
    expect(daysLeft(1000, [day('2026-11-17', 10), day('2026-11-16', 0)], '2026-11-17T09:00:00Z')).toBe(100)
  })
  it('have no end without use', () => expect(daysLeft(1000, [day('2026-11-17', 0)], '2026-11-17T09:00:00Z')).toBeNull())
})

describe('distance to a mark', () => {
  it('is the least number of further bounces that reaches the share', () => {
    const steps = stepsToMark(12, 812, 200, { percent: 10, count: 0 })
    expect((12 + steps) / (812 + steps)).toBeGreaterThanOrEqual(0.1)
    expect((12 + steps - 1) / (812 + steps - 1)).toBeLessThan(0.1)
  })
  it('waits for the least counts', () => {
    expect(stepsToMark(0, 0, 200, { percent: 10, count: 0 })).toBe(200)
    expect(stepsToMark(4, 500, 200, { percent: 0.5, count: 10 })).toBe(6)
  })
  it('is 0 once reached', () => expect(stepsToMark(100, 400, 200, { percent: 10, count: 0 })).toBe(0))
})

it('a reason at two providers is a single row', () => {
  const explanation = { reason: 'unknown_address', headline: 'No such address.', what_to_do: 'Remove it.' }
  const rows = groupReasons([
    { provider: 'google', result: 'bounced', count: 3, example_message_id: 'em_1', explanation },
    { provider: 'other', result: 'deferred', count: 4, example_message_id: 'em_2', explanation },
    { provider: 'yahoo', result: 'bounced', count: 2, example_message_id: 'em_3', explanation },
  ])
  expect(rows.map(({ count, providers, exampleId }) => [count, providers, exampleId])).toEqual([
    [5, ['google', 'yahoo'], 'em_1'],
    [4, ['other'], 'em_2'],
  ])
})

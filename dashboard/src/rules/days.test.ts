import { expect, test } from 'vitest'
import { date } from '../words/format'
import { byDay } from './days'

test('entries of one day are together, in their order', () => {
  const at = (day: number, hour: number) => new Date(2026, 10, day, hour).toISOString()
  const entries = [at(19, 18), at(19, 0), at(18, 23), at(16, 12)]
  expect(byDay(entries, (entry) => entry)).toEqual([
    { day: date(at(19, 0)), items: entries.slice(0, 2) },
    { day: date(at(18, 0)), items: [entries[2]] },
    { day: date(at(16, 0)), items: [entries[3]] },
  ])
  expect(byDay([], String)).toEqual([])
})

import { expect, it } from 'vitest'
import { ratesOf } from './lane-rates'

const first = { at: '2026-11-17T00:00:00Z', delivered_total: 100, deferred_total: 4 }

it('two readings give rates', () => {
  expect(ratesOf(null, first)).toBe(null)
  expect(ratesOf(first, { at: '2026-11-17T00:00:05Z', delivered_total: 150, deferred_total: 5 })).toEqual({ delivered: 10, deferred: 0.2 })
})

it('a restarted worker, and the same reading twice, give no rates', () => {
  expect(ratesOf(first, { at: '2026-11-17T00:00:05Z', delivered_total: 3, deferred_total: 4 })).toBe(null)
  expect(ratesOf(first, first)).toBe(null)
})

import { expect, it } from 'vitest'
import { bytes, duration, number, percent, relative } from './format'
import { accounts } from './operator'
import { pseudo } from './words'

it('the pseudo-locale is longer and bracketed', () => {
  expect(pseudo('Messages')).toMatch(/^\[Méššáğéš·{4}\]$/)
})

it('lengths of time have at most two units', () => {
  expect([0.25, 1.25, 42, 250, 3600, 7260, 90000].map(duration)).toEqual(['250 ms', '1.3 sec', '42 sec', '4 min 10 sec', '1 hr', '2 hr 1 min', '1 day 1 hr'])
})

it('numbers, shares, sizes and times are written for people', () => {
  expect([number(1234567), percent(0.0123), bytes(1500), bytes(10)]).toEqual(['1,234,567', '1.23%', '1.5 kB', '10 bytes'])
  expect(relative('2026-11-17T00:00:00Z', new Date('2026-11-17T00:03:00Z'))).toBe('3 minutes ago')
  expect(relative('2026-11-17T00:00:08Z', new Date('2026-11-17T00:00:00Z'))).toBe('now')
})

it('the distance to a limit is rounded down', () => {
  expect([0.004, 0.29, 0.929, 0.9999, 1].map(accounts.limits.warmup)).toEqual(['0%', '29%', '92%', '99%', '100%'].map((share) => `${share} of today’s warm-up`))
  expect([0, 0.01, 1, 1.99, 2, 6.9].map(accounts.limits.credits)).toEqual([
    'no credits', 'credits for less than a day', 'credits for 1 day', 'credits for 1 day', 'credits for 2 days', 'credits for 6 days',
  ])
})

import { expect, test } from 'vitest'
import { ratePlots, warmUpRows } from './operator-plots'

const change = (at: string, address: string, reply: string | null, was: number, rate: number) => ({ at, address, reply, was_per_second: was, per_second: rate })

test('each address has a plot of its rate and of the rates that were refused', () => {
  const plots = ratePlots([change('3', 'a', null, 5, 6), change('2', 'b', null, 1, 2), change('1', 'a', '421', 10, 5)], (at) => at)
  expect(plots).toEqual([['a', [{ at: '1', values: { rate: 5, refused: 10 } }, { at: '3', values: { rate: 6 } }]]])
})

test('the days of a warm-up end with today, however long each lane has been warming up', () => {
  const rows = warmUpRows([{ accepted: 3, accepted_before: [1, 2] }, { accepted: 9, accepted_before: [] }], String)
  expect(rows).toEqual([{ at: '2', values: { 'lane 0': 1 } }, { at: '1', values: { 'lane 0': 2 } }, { at: '0', values: { 'lane 0': 3, 'lane 1': 9 } }])
  expect(warmUpRows([], String)).toEqual([{ at: '0', values: {} }])
})

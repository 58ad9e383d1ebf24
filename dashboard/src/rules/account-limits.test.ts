import { expect, test } from 'vitest'
import { warmUpOf, warmUpText } from './account-limits'

test('a warm-up is read as it is written', () => {
  for (const own of [[100, 200], 'exempt'] as const) expect(warmUpOf(warmUpText(own))).toEqual(own)
  expect(warmUpOf(warmUpText(null))).toBe('default')
  expect(warmUpOf(' 1 ,2')).toEqual([1, 2])
})

import { expect, it } from 'vitest'
import { readProgress } from './import-progress'

it('reads the last whole line and keeps the rest', () => {
  const { progress, rest } = readProgress('{"lines":1,"added":1,"known":0,"invalid":0}\n{"lines":5,"added":3,"known":1,"invalid":1}\n{"li')
  expect(progress).toEqual({ lines: 5, added: 3, known: 1, invalid: 1, done: null, error: null, errors: [] })
  expect(rest).toBe('{"li')
})

it('reads the end with its invalid lines', () => {
  const { progress } = readProgress('{"lines":2,"added":1,"known":0,"invalid":1,"done":true,"errors":[{"line":2,"error":"Line 2 has no address."}]}\n')
  expect([progress?.done, progress?.errors]).toEqual([true, ['Line 2 has no address.']])
})

it.each(['', '{"lines":', 'nonsense\n', '[1]\n', '7\n'])('survives %j', (text) => {
  expect(readProgress(text).progress?.lines ?? 0).toBe(0)
})

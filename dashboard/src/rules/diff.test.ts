import { expect, it } from 'vitest'
import { diff } from './diff'

const marks = { same: ' ', added: '+', removed: '-' }
const written = (before: string, after: string) => diff(before, after).map(({ kind, text }) => marks[kind] + text)

it.each([
  ['a\nb\nc', 'a\nb\nc', [' a', ' b', ' c']],
  ['a\nb\nc', 'a\nx\nc', [' a', '-b', '+x', ' c']],
  ['a\nb', 'b', ['-a', ' b']],
  ['a', 'a\nb', [' a', '+b']],
  ['a\na\na', 'a\na', [' a', ' a', '-a']],
])('%j to %j', (before, after, lines) => {
  expect(written(before, after)).toEqual(lines)
})

it('applying the lines gives both texts, whatever they are', () => {
  let seed = 7
  const random = (below: number) => (seed = (seed * 1103515245 + 12345) % 2147483648) % below
  for (let round = 0; round < 200; round += 1) {
    const text = () => Array.from({ length: random(12) }, () => 'abc'[random(3)]).join('\n')
    const [before, after] = [text(), text()]
    const lines = diff(before, after)
    expect(lines.filter(({ kind }) => kind !== 'added').map((line) => line.text).join('\n')).toBe(before)
    expect(lines.filter(({ kind }) => kind !== 'removed').map((line) => line.text).join('\n')).toBe(after)
  }
})

import { expect, it } from 'vitest'
import { pairsOf, linesOf } from './typed-lines'

it('blank lines are ignored', () => {
  expect(linesOf(' orders \n\n  two words\n')).toEqual(['orders', 'two words'])
})

it('a name ends at the first colon', () => {
  expect(pairsOf('Authorization: Bearer a:b\nX-Team:  mail \nnone')).toEqual({ Authorization: 'Bearer a:b', 'X-Team': 'mail', none: '' })
  expect(pairsOf('')).toEqual({})
})

import { expect, test } from 'vitest'
import { unturned } from './foreign-text'

test('nothing turns the text around it', () => {
  for (const character of '\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069') {
    expect(unturned(`Pay ${character}ecilop`)).toBe('Pay \ufffdecilop')
  }
})

test('languages that are written from right to left stay as they are', () => {
  for (const text of ['שלום', '\u200fשלום\u200e!', 'مرحبا', '👩‍🚀', '']) expect(unturned(text)).toBe(text)
})

import { describe, expect, it } from 'vitest'
import { meaning } from './search-box'

const ID = `em_${'0'.repeat(26)}`

describe('search box', () => {
  it.each([
    ['', null],
    ['   ', null],
    [ID, { kind: 'message', id: ID }],
    [ID.toUpperCase().replace('EM_', 'em_'), { kind: 'message', id: ID }],
    ['a@example.com', { kind: 'messages', filters: { recipient: 'a@example.com' } }],
    ['tag:welcome', { kind: 'messages', filters: { tag: 'welcome' } }],
    ['tag:"two words" hello', { kind: 'messages', filters: { tag: 'two words', subject: 'hello' } }],
    ['from:shop@example.com receipt', { kind: 'messages', filters: { sender: 'shop@example.com', subject: 'receipt' } }],
    ['failed', { kind: 'messages', filters: { status: 'failed' } }],
    ['Scheduled', { kind: 'messages', filters: { state: 'scheduled' } }],
    ['failed payment', { kind: 'messages', filters: { subject: 'failed payment' } }],
    ['unknown:thing', { kind: 'messages', filters: { subject: 'unknown:thing' } }],
    [`ak_${'0'.repeat(26)}`, { kind: 'messages', filters: { credential_id: `ak_${'0'.repeat(26)}` } }],
    ['a b c', { kind: 'messages', filters: {} }],
    ['one two three four five six', { kind: 'messages', filters: { subject: 'one two three four five' } }],
  ])('%j', (typed, found) => {
    expect(meaning(typed)).toEqual(found)
  })
})

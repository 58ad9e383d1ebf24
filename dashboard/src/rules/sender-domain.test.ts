import { expect, test } from 'vitest'
import { sandboxOf, senderDomain } from './sender-domain'

const shared = { name: 'sandbox.example', verified: true, shared: true }
const own = { name: 'shop.example', verified: true, shared: false }
const unverified = { name: 'new.example', verified: false, shared: false }

test('a verified domain of the account comes before a shared one', () => {
  expect(senderDomain([unverified, shared, own])).toBe('shop.example')
  expect(senderDomain([unverified, shared])).toBe('sandbox.example')
  expect(senderDomain([unverified])).toBeUndefined()
  expect(senderDomain(undefined)).toBeUndefined()
})

test('the sandbox is named while there is no other domain', () => {
  expect(sandboxOf([unverified, shared])).toBe('sandbox.example')
  expect(sandboxOf([shared, own])).toBeUndefined()
  expect(sandboxOf(undefined)).toBeUndefined()
})

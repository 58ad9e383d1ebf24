import { expect, test } from 'vitest'
import { itemsOf, secretState, works } from './secret-state'

const now = new Date('2026-11-17T00:00:00Z')
const key = { revoked_at: null, expires_at: null, replaced_by: null }

test.each([
  [key, 'active'],
  [{ ...key, expires_at: '2026-11-18T00:00:00Z' }, 'expiring'],
  [{ ...key, expires_at: '2027-11-18T00:00:00Z' }, 'active'],
  [{ ...key, expires_at: '2026-11-18T00:00:00Z', replaced_by: 'key_2' }, 'rotated'],
  [{ ...key, expires_at: '2026-11-17T00:00:00Z', replaced_by: 'key_2' }, 'expired'],
  [{ ...key, expires_at: '2026-11-16T00:00:00Z', revoked_at: '2026-11-15T00:00:00Z' }, 'revoked'],
] as const)('%o is %s', (secret, state) => expect(secretState(secret, now)).toBe(state))

test('a revoked or expired key does not work', () => {
  expect(works('rotated')).toBe(true)
  expect(works('revoked')).toBe(false)
})

test('networks are separated by lines or commas', () => expect(itemsOf(' 192.0.2.0/24,\n2001:db8::/32 \n')).toEqual(['192.0.2.0/24', '2001:db8::/32']))

import { expect, it } from 'vitest'
import { lack, may } from './role'
import { NEEDED, ROLES, type Operation } from './roles'

it('every role may do what those before it may', () => {
  for (const operation of Object.keys(NEEDED) as Operation[]) {
    const allowed = ROLES.map((role) => may(role, operation))
    expect(allowed).toEqual([...allowed].sort((a, b) => Number(a) - Number(b)))
    expect(allowed.at(-1)).toBe(true)
  }
})

it('viewers read, and owners alone read the log', () => {
  expect([may('viewer', 'listMessages'), may('viewer', 'createKey'), may('admin', 'createKey'), may('admin', 'listAuditLog')]).toEqual([true, false, true, false])
})

it('without the required second factor, the user may do what concerns them alone', () => {
  const owner = { role: 'owner', lacksFactor: true } as const
  expect([lack(owner, 'beginTotp'), lack(owner, 'getMe'), lack(owner, 'listMessages')]).toEqual([null, null, 'second factor'])
  expect([lack({ ...owner, lacksFactor: false }, 'listMessages'), lack({ role: 'viewer', lacksFactor: false }, 'createKey')]).toEqual([null, 'admin'])
})

import { expect, it } from 'vitest'
import { lack, may } from './role'
import type { AccountOperation } from './role'
import { NEEDED, ROLES } from './roles'

it('every role may do what those before it may', () => {
  for (const operation of Object.keys(NEEDED) as AccountOperation[]) {
    const allowed = ROLES.map((role) => may(role, operation))
    expect(allowed).toEqual([...allowed].sort((a, b) => Number(a) - Number(b)))
    expect(allowed.at(-1)).toBe(true)
  }
})

it('viewers read, and only owners read the log', () => {
  expect([may('viewer', 'listMessages'), may('viewer', 'createKey'), may('admin', 'createKey'), may('admin', 'listAuditLog')]).toEqual([true, false, true, false])
})

it('without the required second factor, the user may only manage their own sign-in', () => {
  const owner = { role: 'owner', lacksFactor: true, operator: 'no' } as const
  expect([lack(owner, 'beginTotp'), lack(owner, 'getMe'), lack(owner, 'listMessages')]).toEqual([null, null, 'second factor'])
  expect([lack({ ...owner, lacksFactor: false }, 'listMessages'), lack({ ...owner, role: 'viewer', lacksFactor: false }, 'createKey')]).toEqual([null, 'admin'])
})

it('only operators operate, with a second factor and in any role', () => {
  const viewer = { role: 'viewer', lacksFactor: false } as const
  expect(Object.keys(NEEDED).filter((operation) => operation.startsWith('operator'))).toEqual([])
  for (const operation of ['operatorOverview', 'operatorGrantCredits'] as const) {
    expect(lack({ role: 'owner', lacksFactor: false, operator: 'no' }, operation)).toBe('operator')
    expect(lack({ ...viewer, operator: 'lacks factor' }, operation)).toBe('operator factor')
    expect(lack({ ...viewer, operator: 'yes' }, operation)).toBe(null)
  }
})

import { expect, it } from 'vitest'
import { ledgerQuery } from './ledger'

it.each([
  [{}, {}],
  [{ kind: 'settle', from: '2026-11-01', to: '2026-11-17' }, { kind: 'settle', from: '2026-11-01', to: '2026-11-17' }],
  [{ kind: 'theft', from: 'yesterday', to: '2026-13-01', message_id: 'em_1' }, {}],
  [{ message_id: `em_${'0'.repeat(26)}` }, { message_id: `em_${'0'.repeat(26)}` }],
])('filters %j', (filters, query) => {
  expect(ledgerQuery(filters)).toEqual(query)
})

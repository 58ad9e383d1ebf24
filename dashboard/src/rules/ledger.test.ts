import { expect, it } from 'vitest'
import { ledgerQuery, linesOf, type Kind } from './ledger'

it.each([
  [{}, {}],
  [{ kind: 'settle', from: '2026-11-01', to: '2026-11-17' }, { kind: 'settle', from: '2026-11-01', to: '2026-11-17' }],
  [{ kind: 'theft', from: 'yesterday', to: '2026-13-01', message_id: 'em_1' }, {}],
  [{ message_id: `em_${'0'.repeat(26)}` }, { message_id: `em_${'0'.repeat(26)}` }],
])('filters %j', (filters, query) => {
  expect(ledgerQuery(filters)).toEqual(query)
})

const entry = (kind: Kind, amount: number, message: string | null) => ({ id: `${kind} ${message ?? ''}`, kind, amount, at: '', message_id: message })

it('a message is one line, with what was spent, returned and is still reserved', () => {
  const entries = [
    entry('settle', 0, 'em_2'), entry('release', 1, 'em_2'), entry('reserve', -3, 'em_2'),
    entry('grant', 100, null), entry('settle', 0, 'em_1'), entry('reserve', -1, 'em_1'),
  ]
  const lines = linesOf(entries, false).map(({ id, kind, amount, spent, returned, open }) => [id, kind, amount, spent, returned, open])
  expect(lines).toEqual([['em_2', 'reserve', -2, 1, 1, 1], ['grant ', 'grant', 100, 0, 0, 0], ['em_1', 'settle', -1, 1, 0, 0]])
})

it('a message whose entries are not all known yet is not a line', () => {
  const entries = [entry('release', 1, 'em_2'), entry('reserve', -1, 'em_2'), entry('settle', 0, 'em_1')]
  expect(linesOf(entries, true).map(({ id, kind }) => [id, kind])).toEqual([['em_2', 'release']])
})

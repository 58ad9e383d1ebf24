import { expect, test } from 'vitest'
import { list } from '../words/format'
import { filterText, type EndpointFilters } from './endpoint-filters'

const ALL: EndpointFilters = { types: ['email.delivered', 'email.bounced', 'email.failed', 'email.deferred'], sender_domains: [], tags: [], mode: null }

test('an endpoint without filters gets all events', () => {
  expect(filterText(ALL, 4)).toBe('All events')
})

test('every filter is named', () => {
  const filters: EndpointFilters = { types: ['email.bounced'], sender_domains: ['shop.example', 'b.example'], tags: ['order'], mode: 'live' }
  expect(filterText(filters, 4)).toBe(`Events: bounced · from ${list(['shop.example', 'b.example'])} · tagged order · live mail`)
  expect(filterText({ ...ALL, tags: ['order'] }, 4)).toBe('All events · tagged order')
  expect(filterText(ALL, 13)).toBe('4 kinds of events')
  expect(filterText({ ...ALL, types: ['email.delivered', 'email.bounced', 'email.failed'] }, 13)).toBe(`Events: ${list(['delivered', 'bounced', 'failed'])}`)
})

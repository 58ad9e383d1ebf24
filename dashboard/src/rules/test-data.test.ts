import { expect, it } from 'vitest'
import { dataOf, plainNames, textOf, withValue } from './test-data'

it('test data is a JSON object', () => {
  expect(['', '{"a": [1]}', '[1]', 'null', '"a"', '{'].map(dataOf)).toEqual([{}, { a: [1] }, null, null, null, null])
})

it('lists and objects have no field', () => {
  const template = 'Hi {{name}} {{#each items}}{{title}}{{/each}} {{#with shop}}x{{/with}} {{#if vip}}y{{/if}} {{order.id}} {{address}}'
  expect(plainNames(['name', 'items', 'shop', 'vip', 'order.id', 'address'], template, { address: { city: 'Ulm' } })).toEqual(['name', 'vip'])
})

it('a field sets and removes its name', () => {
  expect(JSON.parse(withValue({ items: [1] }, 'name', 'Ada'))).toEqual({ items: [1], name: 'Ada' })
  expect(JSON.parse(withValue({ items: [1], name: 'Ada' }, 'name', ''))).toEqual({ items: [1] })
})

it('a value is shown as text, and only if it is given', () => {
  expect(['name', 'count', 'none', 'constructor'].map((name) => textOf({ name: 'Ada', count: 3, none: null }, name))).toEqual(['Ada', '3', '', ''])
})

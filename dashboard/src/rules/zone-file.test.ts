import { expect, test } from 'vitest'
import { nameWithin, zoneFile } from './zone-file'

test('a record is a line with its full name', () => {
  expect(zoneFile([{ name: '_posthouse.shop.example', value: 'posthouse=ab12' }])).toBe(
    '_posthouse.shop.example. 3600 IN TXT "posthouse=ab12"\n',
  )
})

test('a long value is several strings of at most 255 bytes', () => {
  const [line] = zoneFile([{ name: 'k._domainkey.shop.example', value: 'x'.repeat(400) }]).split('\n')
  expect(line).toBe(`k._domainkey.shop.example. 3600 IN TXT "${'x'.repeat(255)}" "${'x'.repeat(145)}"`)
})

test('quotes, line breaks and other letters are escaped', () => {
  expect(zoneFile([{ name: 'a.example', value: 'a"b\\c\nd é' }])).toBe('a.example. 3600 IN TXT "a\\"b\\\\c\\010d \\195\\169"\n')
})

test('no string contains half a letter', () => {
  expect(zoneFile([{ name: 'a.example', value: `${'x'.repeat(254)}é` }])).toContain(`"${'x'.repeat(254)}" "\\195\\169"`)
})

test('names are shortened only by the domain', () => {
  expect(nameWithin('_dmarc.shop.example', 'shop.example')).toBe('_dmarc')
  expect(nameWithin('shop.example', 'shop.example')).toBe('@')
  expect(nameWithin('myshop.example', 'shop.example')).toBe('myshop.example')
})

import { describe, expect, it } from 'vitest'
import { accountOf, inAccount, parseSearch, pickTexts, returnPath, tokenOf, writeSearch } from './address'

const ACCOUNT = `ac_${'0'.repeat(26)}`

describe('addresses', () => {
  it.each([
    [`/dashboard/${ACCOUNT}/messages`, ACCOUNT],
    [`/dashboard/${ACCOUNT}`, ACCOUNT],
    ['/dashboard/login', null],
    ['/dashboard/', null],
    [`/other/${ACCOUNT}`, null],
    ['/dashboard/ac_short', null],
  ])('%s names the account %s', (path, account) => {
    expect(accountOf(path)).toBe(account)
  })

  it('another account opens the same page, and the list of a single thing', () => {
    expect(inAccount(`/dashboard/${ACCOUNT}/messages/em_1`, 'ac_2')).toBe('/ac_2/messages')
    expect(inAccount(`/dashboard/${ACCOUNT}`, 'ac_2')).toBe('/ac_2/overview')
  })

  it.each([undefined, '', 'https://evil.example', '//evil.example', '/\\evil.example', 'javascript:alert(1)', '/login?to=/x'])(
    'after sign-in %s leads nowhere',
    (given) => {
      expect(returnPath(given)).toBeNull()
    },
  )

  it('after sign-in a page of the dashboard is opened again', () => {
    expect(returnPath(`/${ACCOUNT}/messages?status=failed`)).toBe(`/${ACCOUNT}/messages?status=failed`)
  })

  it.each([
    ['', null],
    ['#', null],
    ['#link=', null],
    ['#link=abc', { kind: 'link', token: 'abc' }],
    ['#abc', { kind: 'token', token: 'abc' }],
  ])('the hash %j holds %j', (hash, token) => {
    expect(tokenOf(hash)).toEqual(token)
  })

  it('filters are written into the address and read back', () => {
    const filters = { subject: 'a & b = ü', tag: 'x?y', status: undefined, after: '' }
    expect(parseSearch(writeSearch(filters))).toEqual({ subject: 'a & b = ü', tag: 'x?y' })
    expect(writeSearch({})).toBe('')
  })

  it('unknown and nested values of an address are dropped', () => {
    expect(pickTexts({ status: 'failed', limit: 5, tag: { x: 1 }, other: 'y' }, ['status', 'limit', 'tag'] as const)).toEqual({ status: 'failed', limit: '5' })
    expect(pickTexts(null, ['status'] as const)).toEqual({})
  })
})

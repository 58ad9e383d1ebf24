import { describe, expect, it } from 'vitest'
import { bareContentId, contentIdsIn, linksIn, loadsFromInternet, safeAddress, withPictures } from './mail-html'
import { askAgainMs, byUrgency, countsOf, groupBy, recipientState, stepsOf } from './message-story'
import { supportReport } from './support-report'

const AT = '2026-11-17T00:00:00.000Z'
const at = (seconds: number) => new Date(new Date(AT).getTime() + seconds * 1000)
const waits = (nextAt: string | null) => ({ status: 'deferred', delivered_at: null, attempts: [], waiting: { next_at: nextAt } })
const attempt = (seconds: number, outcome: string | null, ms = 500) => ({ started_at: at(seconds).toISOString(), duration_ms: ms, outcome })

describe('a message', () => {
  it('counts its recipients', () => {
    expect(countsOf(['delivered', 'queued', 'deferred', 'scheduled', 'bounced', 'suppressed', 'cancelled'])).toEqual({ delivered: 1, bounced: 1, suppressed: 1, failed: 0, cancelled: 1, waiting: 3 })
  })
  it('has one word for mail that was not sent, and for mail that is sent later', () => {
    const bounced = (reason: string) => recipientState({ status: 'bounced', waiting: null, explanation: { reason } })
    expect(['suppressed', 'unsubscribed', 'unknown_address'].map(bounced)).toEqual(['suppressed', 'suppressed', 'bounced'])
    expect(recipientState({ status: 'queued', waiting: { reason: 'scheduled' } })).toBe('scheduled')
    expect(recipientState({ status: 'queued', waiting: { reason: 'due' } })).toBe('queued')
  })
  it('shows what needs attention first, and equal things once', () => {
    expect(byUrgency(['delivered', 'deferred', 'delivered', 'bounced', 'failed'], (state) => state)).toEqual(['failed', 'bounced', 'deferred', 'delivered', 'delivered'])
    expect(groupBy(['a1', 'b1', 'a2'], (item) => item.slice(0, 1))).toEqual([['a1', 'a2'], ['b1']])
  })
  it('is read every second at first, then at its next try', () => {
    expect(askAgainMs([waits(null)], AT, at(10))).toBe(1_000)
    expect(askAgainMs([waits(at(110).toISOString())], AT, at(100))).toBe(11_000)
    expect(askAgainMs([waits(at(90).toISOString())], AT, at(100))).toBe(1_000)
    expect(askAgainMs([waits(at(9_000).toISOString())], AT, at(100))).toBe(30_000)
    expect(askAgainMs([{ ...waits(null), waiting: null }], AT, at(10))).toBe(30_000)
  })
  it('shows waits between its tries and does not count postponed ones', () => {
    const steps = stepsOf([attempt(0.1, 'deferred'), attempt(60, 'postponed', 0), attempt(120, 'delivered')], AT)
    expect(steps.map((step) => (step.kind === 'waited' ? `waited ${String(step.seconds)}` : `try ${String(step.place)}`))).toEqual(
      ['try 1', 'waited 59.4', 'try 1', 'waited 60', 'try 2'],
    )
  })
})

describe('HTML of a message', () => {
  it('lists each of its links once', () => {
    expect(linksIn(`<a href="https://a.example/?x=1&amp;y=2">a</a><A class=b HREF='javascript:alert(1)'><a href=https://a.example/?x=1&y=2><a href="#top">`)).toEqual(
      { links: ['https://a.example/?x=1&y=2', 'javascript:alert(1)'], isCut: false },
    )
  })
  it('lists a hundred links at most', () => {
    const html = Array.from({ length: 150 }, (_, place) => `<a href="https://a.example/${String(place)}">`).join('')
    expect([linksIn(html).links.length, linksIn(html).isCut]).toEqual([100, true])
  })
  it('makes links only of https addresses', () => {
    expect(['http://a.example', 'javascript:alert(1)', 'data:text/html,x', '/x', 'https:'].map(safeAddress)).toEqual([null, null, null, null, null])
    expect(['https://a.example', 'https://\u0430.example/\u202egpj.exe'].map(safeAddress)).toEqual(['https://a.example/', 'https://xn--80a.example/%E2%80%AEgpj.exe'])
  })
  it('says whether it loads from the internet', () => {
    expect(['<img src="https://a/b">', `<td background=//a/b>`, '<p style="background:url(http://a/b)">', '<a href="https://a/b">', '<img src="cid:x">'].map(loadsFromInternet)).toEqual(
      [true, true, true, false, false],
    )
  })
  it('shows its own pictures', () => {
    const html = '<img src="cid:logo@a"><img src="cid:constructor">'
    expect(contentIdsIn(html)).toEqual(['logo@a', 'constructor'])
    expect(withPictures(html, { 'logo@a': 'data:image/png;base64,AA==' })).toBe('<img src="data:image/png;base64,AA=="><img src="cid:constructor">')
    expect(bareContentId('<logo@a>')).toBe('logo@a')
  })
})

it('a report for support has neither subject nor names before the @', () => {
  const report = supportReport(
    {
      id: 'em_1', status: 'queued', source: 'api', created_at: AT, accepted_request_id: 'rq_1', credential: { id: 'cr_1' }, from: 'Firm <news@shop.example>',
      recipients: [{
        id: 'rc_1', email: 'ada@b.example', status: 'deferred',
        attempts: [{ ...attempt(1, 'deferred'), mx_host: 'mx.b.example', remote_ip: '192.0.2.1', tls_version: 'TLSv1.3', stage: 'rcpt', code: 450, response: '<ADA@b.example>: later' }],
        waiting: { reason: 'deferred', text: 'ada@b.example was deferred', next_at: AT },
      }],
    },
    'https://mail.example',
  )
  expect(report).toContain('450 <…@b.example>: later')
  expect(report).not.toMatch(/ada|news|Firm/i)
})

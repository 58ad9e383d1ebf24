import { expect, it } from 'vitest'
import { hintOf, readEvents } from './event-stream'

const TEXT = ':\n\nevent: ready\ndata: {}\n\nevent: accepted\ndata: {"message_ids": ["em_1", "em_2"]}\n\n'

it('events are the same however the text is cut', () => {
  const whole = readEvents(TEXT).events
  expect(whole.map(({ name }) => name)).toEqual(['ready', 'accepted'])
  for (let cut = 0; cut <= TEXT.length; cut += 1) {
    const first = readEvents(TEXT.slice(0, cut))
    const second = readEvents(first.rest + TEXT.slice(cut))
    expect([...first.events, ...second.events]).toEqual(whole)
    expect(second.rest).toBe('')
  }
})

it.each([
  [{ name: 'accepted', data: '{"message_ids": ["em_1", "em_1", 3]}' }, { kind: 'accepted', messageIds: ['em_1'] }],
  [{ name: 'final', data: '{"recipients": [{"recipient_id": "rc_1", "message_id": "em_1"}, null]}' }, { kind: 'final', messageIds: ['em_1'] }],
  [{ name: 'final', data: 'no JSON' }, { kind: 'final', messageIds: [] }],
  [{ name: 'ready', data: '' }, { kind: 'resync' }],
  [{ name: 'resync', data: '' }, { kind: 'resync' }],
  [{ name: 'end', data: '{}' }, { kind: 'end' }],
  [{ name: 'other', data: '{}' }, null],
])('%j is %j', (event, hint) => {
  expect(hintOf(event)).toEqual(hint)
})

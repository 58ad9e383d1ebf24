/** What happened to the message, in one sentence. */
import { countsOf, recipientState, secondsBetween } from '../../rules/message-story'
import { list, moment } from '../../words/format'
import { text } from '../../words/message'
import type { Message, Recipient } from './types'

/** `captures`: the service captures all mail, so that nothing was delivered. */
export function sentence(message: Message, captures: boolean): string {
  const [only, ...others] = message.recipients
  if (only !== undefined && others.length === 0) return ofRecipient(only, message.created_at, captures)
  const counts = countsOf(message.recipients.map(recipientState))
  if (counts.delivered === message.recipients.length) return captures ? text.capturedAll(counts.delivered) : text.deliveredAll(counts.delivered)
  const kinds = ['delivered', 'bounced', 'suppressed', 'failed', 'cancelled', 'waiting'] as const
  const parts = kinds.filter((kind) => counts[kind] > 0).map((kind) => text.parts[captures && kind === 'delivered' ? 'captured' : kind](counts[kind]))
  return text.several(message.recipients.length, list(parts))
}

function ofRecipient(recipient: Recipient, acceptedAt: string, captures: boolean): string {
  const state = recipientState(recipient)
  const headline = recipient.explanation?.headline ?? recipient.waiting?.text ?? recipient.last_smtp_response ?? ''
  if (state === 'suppressed') return text.suppressed(headline)
  if (recipient.status === 'bounced') return text.bounced(headline)
  if (recipient.status === 'failed') return text.failed(headline)
  if (recipient.status === 'cancelled') return text.cancelled(headline)
  if (state === 'scheduled') return text.scheduled(moment(recipient.waiting?.next_at ?? acceptedAt))
  if (recipient.status !== 'delivered') return text.waits(headline)
  if (recipient.reports.some(({ kind }) => kind === 'complaint')) return text.complained
  if (recipient.reports.some(({ kind }) => kind === 'bounce')) return text.bouncedLater
  if (captures) return text.captured(recipient.email)
  return text.delivered(recipient.email, secondsBetween(acceptedAt, recipient.delivered_at ?? acceptedAt))
}

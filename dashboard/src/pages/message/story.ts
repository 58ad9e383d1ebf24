/** What happened to the message, in one sentence. */
import { countsOf, secondsBetween } from '../../rules/message-story'
import { list } from '../../words/format'
import { text } from '../../words/message'
import type { Message, Recipient } from './types'

export function sentence(message: Message): string {
  const [only, ...others] = message.recipients
  if (only !== undefined && others.length === 0) return ofRecipient(only, message.created_at)
  const counts = countsOf(message.recipients)
  if (counts.delivered === message.recipients.length) return text.deliveredAll(counts.delivered)
  const kinds = ['delivered', 'bounced', 'failed', 'cancelled', 'waiting'] as const
  const parts = kinds.filter((kind) => counts[kind] > 0).map((kind) => text.parts[kind](counts[kind]))
  return text.several(message.recipients.length, list(parts))
}

function ofRecipient(recipient: Recipient, acceptedAt: string): string {
  const headline = recipient.explanation?.headline ?? recipient.waiting?.text ?? recipient.last_smtp_response ?? ''
  if (recipient.status === 'bounced') return text.bounced(headline)
  if (recipient.status === 'failed') return text.failed(headline)
  if (recipient.status === 'cancelled') return text.cancelled(headline)
  if (recipient.waiting?.reason === 'scheduled') return text.scheduled(headline)
  if (recipient.status !== 'delivered') return text.waits(headline)
  if (recipient.reports.some(({ kind }) => kind === 'complaint')) return text.complained
  if (recipient.reports.some(({ kind }) => kind === 'bounce')) return text.bouncedLater
  return text.delivered(recipient.email, secondsBetween(acceptedAt, recipient.delivered_at ?? acceptedAt))
}

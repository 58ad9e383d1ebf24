/** A message's delivery as text for a request for help: no subject, no content, no names before the @. */

interface Attempt {
  readonly started_at: string
  readonly duration_ms: number | null
  readonly outcome: string | null
  readonly mx_host: string | null
  readonly remote_ip: string | null
  readonly tls_version: string | null
  readonly stage: string | null
  readonly code: number | null
  readonly response: string | null
}

interface Recipient {
  readonly id: string
  readonly email: string
  readonly status: string
  readonly attempts: readonly Attempt[]
  readonly waiting: { readonly reason: string; readonly text: string; readonly next_at: string | null } | null
  readonly explanation?: { readonly reason: string }
}

export interface Reported {
  readonly id: string
  readonly status: string
  readonly source: string
  readonly created_at: string
  readonly accepted_request_id: string
  readonly credential: { readonly id: string }
  readonly from: string
  readonly recipients: readonly Recipient[]
}

const domainOf = (address: string): string => address.slice(address.lastIndexOf('@') + 1).replace(/>$/, '')

const escaped = (text: string): string => text.replaceAll(/[.*+?^${}()|[\]\\]/g, '\\$&')

/** A server's reply may repeat the address. */
function withoutAddresses(reply: string, emails: readonly string[]): string {
  return emails.reduce((text, email) => text.replaceAll(new RegExp(escaped(email), 'gi'), `…@${domainOf(email)}`), reply)
}

export function supportReport(message: Reported, origin: string): string {
  const emails = [...message.recipients.map(({ email }) => email), /<([^>]+)>/.exec(message.from)?.[1] ?? message.from]
  const lines = [
    `Message ${message.id} at ${origin}`,
    `Status: ${message.status}`,
    `Accepted: ${message.created_at} by ${message.source}, request ${message.accepted_request_id}, credential ${message.credential.id}`,
    `Sender's domain: ${domainOf(message.from)}`,
  ]
  for (const recipient of message.recipients) {
    lines.push('', `Recipient ${recipient.id} at ${domainOf(recipient.email)}: ${recipient.status}${recipient.explanation === undefined ? '' : ` (${recipient.explanation.reason})`}`)
    for (const attempt of recipient.attempts) {
      const reply = attempt.response === null ? 'no reply' : withoutAddresses(attempt.response, emails)
      const server = [attempt.mx_host, attempt.remote_ip].filter((name) => name !== null).join(' ')
      lines.push(
        `  ${attempt.started_at} ${attempt.outcome ?? 'no result'}, ${server === '' ? 'no connection' : server}, TLS ${attempt.tls_version ?? 'none'}, `
          + `${attempt.stage ?? 'no stage'}, ${attempt.duration_ms === null ? 'no duration' : `${String(attempt.duration_ms)} ms`}`,
        `    ${attempt.code === null ? '' : `${String(attempt.code)} `}${reply}`,
      )
    }
    if (recipient.waiting !== null) {
      lines.push(`  Waiting: ${withoutAddresses(recipient.waiting.text, emails)}${recipient.waiting.next_at === null ? '' : `; next try ${recipient.waiting.next_at}`}`)
    }
  }
  return lines.join('\n')
}

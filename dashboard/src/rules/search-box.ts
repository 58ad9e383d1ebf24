/** What the search box means: an id, an address, a tag, or words of the subject. */

export type Found =
  | { readonly kind: 'message'; readonly id: string }
  | { readonly kind: 'messages'; readonly filters: MessageFilters }

/** The filters of the list of messages, as its address has them. */
export interface MessageFilters {
  readonly status?: string
  readonly state?: string
  readonly recipient?: string
  readonly sender?: string
  readonly subject?: string
  readonly tag?: string
  readonly template?: string
  readonly source?: string
  readonly credential_id?: string
  readonly request_id?: string
  readonly after?: string
  readonly before?: string
}

const STATUSES = ['queued', 'delivered', 'partial', 'failed']
const STATES = ['scheduled', 'bounced', 'suppressed', 'cancelled']
const NAMED: Readonly<Record<string, keyof MessageFilters>> = {
  to: 'recipient', recipient: 'recipient', from: 'sender', sender: 'sender', subject: 'subject', tag: 'tag',
  template: 'template', status: 'status', state: 'state', source: 'source', key: 'credential_id', request: 'request_id',
  after: 'after', before: 'before',
}
const MESSAGE_ID = /^em_[0-9a-z]{26}$/i
const CREDENTIAL_ID = /^(ak|cr)_[0-9a-z]{26}$/i
const REQUEST_ID = /^rq_[0-9a-z]{26}$/i
const ADDRESS = /^[^\s@]+@[^\s@]+$/
const IS_WORD = /[\p{L}\p{N}]{2,}/u

/** Null for an empty box. */
export function meaning(typed: string): Found | null {
  const parts = split(typed)
  const [only] = parts
  if (only === undefined) return null
  if (parts.length === 1 && MESSAGE_ID.test(only)) return { kind: 'message', id: only.toLowerCase() }
  const filters: Partial<Record<keyof MessageFilters, string>> = {}
  const subject: string[] = []
  for (const part of parts) {
    const colon = part.indexOf(':')
    const name = colon > 0 ? NAMED[part.slice(0, colon).toLowerCase()] : undefined
    const value = part.slice(colon + 1)
    if (name !== undefined && value !== '') filters[name] = value
    else if (ADDRESS.test(part)) filters.recipient = part
    else if (CREDENTIAL_ID.test(part)) filters.credential_id = part
    else if (REQUEST_ID.test(part)) filters.request_id = part
    else if (parts.length === 1 && STATUSES.includes(part.toLowerCase())) filters.status = part.toLowerCase()
    else if (parts.length === 1 && STATES.includes(part.toLowerCase())) filters.state = part.toLowerCase()
    else if (IS_WORD.test(part)) subject.push(part)
  }
  if (subject.length > 0) filters.subject = [filters.subject, ...subject].filter(Boolean).slice(0, 5).join(' ')
  return { kind: 'messages', filters }
}

/** By spaces; quotes keep words together: `tag:"two words"`. */
function split(typed: string): string[] {
  return [...typed.matchAll(/(?:[^\s"]|"[^"]*"?)+/g)].map(([part]) => part.replaceAll('"', '').trim()).filter((part) => part !== '')
}

import type { Tone } from '../../parts/Status'
import { text } from '../../words/domains'

export interface DomainState {
  readonly verified: boolean
  readonly vouched: boolean
  readonly shared: boolean
  readonly missing_since: string | null
}

export function stateOf(domain: DomainState): { readonly label: string; readonly tone: Tone } {
  if (domain.shared) return { label: text.shared, tone: 'good' }
  if (domain.vouched) return { label: text.vouched, tone: 'good' }
  if (!domain.verified) return { label: text.waiting, tone: 'warn' }
  return domain.missing_since === null ? { label: text.verified, tone: 'good' } : { label: text.losing, tone: 'bad' }
}

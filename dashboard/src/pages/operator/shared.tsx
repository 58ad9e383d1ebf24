/** What the operator's pages have in common. */
import type { components } from '../../api/schema'
import { StatusBadge, type Tone } from '../../parts/Status'
import { shared } from '../../words/operator'

export type Lane = components['schemas']['OperatorLane']

const TONES: Readonly<Record<string, Tone>> = { open: 'good', resting: 'warn', blocked: 'bad', paused: 'busy' }

export function LaneBadge({ state }: { readonly state: string }) {
  return <StatusBadge state={state} label={(shared.states as Readonly<Record<string, string>>)[state] ?? state} tone={TONES[state] ?? 'plain'} />
}

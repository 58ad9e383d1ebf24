/** What the operator's pages have in common. */
import { Button, Group, TextInput } from '@mantine/core'
import { useState } from 'react'
import type { components } from '../../api/schema'
import { StatusBadge, type Tone } from '../../parts/Status'
import { accounts, shared } from '../../words/operator'

export type Account = components['schemas']['OperatorAccount']
export type Lane = components['schemas']['OperatorLane']

const TONES: Readonly<Record<string, Tone>> = { open: 'good', resting: 'warn', blocked: 'bad', paused: 'busy', active: 'good', suspended: 'bad' }

export function AccountState({ account: { state, warned_at: warnedAt } }: { readonly account: Account }) {
  return (
    <>
      <StatusBadge state={state} label={(accounts.states as Readonly<Record<string, string>>)[state] ?? state} tone={TONES[state] ?? 'plain'} />
      {warnedAt !== null && <> <StatusBadge state="warned" label={accounts.warned} tone="warn" /></>}
    </>
  )
}

export function LaneBadge({ state }: { readonly state: string }) {
  return <StatusBadge state={state} label={(shared.states as Readonly<Record<string, string>>)[state] ?? state} tone={TONES[state] ?? 'plain'} />
}

interface SearchFormGiven {
  readonly title: string
  readonly label: string
  readonly help: string
  readonly maxLength: number
  readonly given: string
  readonly onSearch: (typed: string) => void
}

export function SearchForm({ title, label, help, maxLength, given, onSearch }: SearchFormGiven) {
  const [typed, setTyped] = useState(given)
  return (
    <form role="search" aria-label={title} onSubmit={(event) => { event.preventDefault(); onSearch(typed.trim()) }}>
      <Group align="flex-end">
        <TextInput label={label} description={help} flex="1 1 280px" maxLength={maxLength} value={typed} onChange={(event) => setTyped(event.currentTarget.value)} autoComplete="off" spellCheck={false} />
        <Button type="submit">{shared.find}</Button>
      </Group>
    </form>
  )
}

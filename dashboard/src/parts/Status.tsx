/** States in colours that can be read in both themes, and figures. */
import { Paper, Text } from '@mantine/core'
import type { ReactNode } from 'react'
import { states } from '../words/parts'
import { useDelivered } from './captures'
import classes from './parts.module.css'

export type Tone = 'good' | 'bad' | 'warn' | 'plain' | 'busy'

const COLORS: Readonly<Record<Tone, string>> = { good: 'teal', bad: 'red', warn: 'orange', plain: 'gray', busy: 'indigo' }
const TONES: Readonly<Record<string, Tone>> = {
  delivered: 'good', verified: 'good', captured: 'good', partial: 'warn', deferred: 'warn', expired: 'warn', suppressed: 'warn',
  failed: 'bad', bounced: 'bad', queued: 'busy', sending: 'busy', pending: 'busy', scheduled: 'busy',
}

export const toneColor = (tone: Tone): string => COLORS[tone]
export const toneOf = (state: string): Tone => TONES[state] ?? 'plain'

/** `state` as in the API; `label` where words/parts contains no name for it. Plain, since lists contain many of them. */
export function StatusBadge({ state, label, tone }: { readonly state: string; readonly label?: string; readonly tone?: Tone }) {
  const delivered = useDelivered()
  const named = state === 'delivered' ? delivered : state
  const name = label ?? (states as Readonly<Record<string, string>>)[named] ?? state
  return <span className={classes.badge} data-tone={tone ?? toneOf(state)}>{name}</span>
}

/** A number with its name. */
export function Figure({ name, value, about }: { readonly name: string; readonly value: ReactNode; readonly about?: ReactNode }) {
  return (
    <Paper withBorder p="md" component="section" aria-label={name}>
      <Text size="sm" c="dimmed">{name}</Text>
      <Text fw={700} fz={24} component="div">{value}</Text>
      {about !== undefined && <Text size="sm" c="dimmed" component="div">{about}</Text>}
    </Paper>
  )
}

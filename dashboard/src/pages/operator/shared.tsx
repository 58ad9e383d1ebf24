/** What the operator's pages have in common. */
import { Group, Paper, Stack, Text, Title } from '@mantine/core'
import type { ReactNode } from 'react'
import type { components } from '../../api/schema'
import { StatusBadge, type Tone } from '../../parts/Status'
import { shared } from '../../words/operator'

export type Lane = components['schemas']['OperatorLane']

const TONES: Readonly<Record<string, Tone>> = { open: 'good', resting: 'warn', blocked: 'bad', paused: 'busy' }

export function LaneBadge({ state }: { readonly state: string }) {
  return <StatusBadge state={state} label={(shared.states as Readonly<Record<string, string>>)[state] ?? state} tone={TONES[state] ?? 'plain'} />
}

export function Section({ title, about, mark, children }: {
  readonly title: string
  readonly about?: string
  /** At the right of the title. */
  readonly mark?: ReactNode
  readonly children: ReactNode
}) {
  return (
    <Paper withBorder p="md" component="section" aria-label={title}>
      <Stack gap="sm">
        <div>
          <Group justify="space-between" gap="xs">
            <Title order={2} size="h5">{title}</Title>
            {mark}
          </Group>
          {about !== undefined && <Text size="sm" c="dimmed">{about}</Text>}
        </div>
        {children}
      </Stack>
    </Paper>
  )
}

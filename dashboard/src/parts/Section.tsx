import { Group, Paper, Stack, Text, Title } from '@mantine/core'
import type { ReactNode } from 'react'

export function Section({ title, about, mark, children }: {
  readonly title: string
  readonly about?: string
  /** To the right of the title. */
  readonly mark?: ReactNode
  readonly children: ReactNode
}) {
  return (
    <Paper withBorder p="md" component="section" aria-label={title} h="100%">
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

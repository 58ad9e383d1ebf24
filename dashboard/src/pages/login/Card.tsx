/** The narrow page around every form of sign-in. */
import { Center, Group, Paper, Stack, Text, Title } from '@mantine/core'
import { IconMailFast } from '@tabler/icons-react'
import { useEffect, type ReactNode } from 'react'
import { text as shell } from '../../words/shell'
import classes from './login.module.css'

export function Card({ title, about, children }: { readonly title: string; readonly about?: string; readonly children: ReactNode }) {
  useEffect(() => {
    document.title = `${title} · ${shell.service}`
  }, [title])
  return (
    <Center component="main" mih="100vh" p="md" className={classes.page ?? ''}>
      <Stack w="100%" maw={420} gap="lg">
        <Group gap="xs" justify="center">
          <IconMailFast size={28} color="var(--mantine-color-anchor)" aria-hidden="true" />
          <Text fw={700} fz="lg">{shell.service}</Text>
        </Group>
        <Paper withBorder shadow="sm" p="xl" radius="lg">
          <Stack>
            <Title order={1} size="h3">{title}</Title>
            {about !== undefined && <Text size="sm" c="dimmed" className={classes.break}>{about}</Text>}
            {children}
          </Stack>
        </Paper>
      </Stack>
    </Center>
  )
}

/** The narrow page around every form of sign-in. */
import { Center, Paper, Stack, Text, Title } from '@mantine/core'
import { useEffect, useRef, type ReactNode } from 'react'
import { text as shell } from '../../words/shell'

export function Card({ title, about, children }: { readonly title: string; readonly about?: string; readonly children: ReactNode }) {
  const heading = useRef<HTMLHeadingElement>(null)
  useEffect(() => {
    document.title = `${title} · ${shell.service}`
  }, [title])
  return (
    <Center component="main" mih="100vh" p="md">
      <Paper withBorder p="xl" w="100%" maw={420} radius="md">
        <Stack>
          <Text fw={700} c="dimmed">{shell.service}</Text>
          <Title order={1} size="h3" ref={heading}>{title}</Title>
          {about !== undefined && <Text size="sm">{about}</Text>}
          {children}
        </Stack>
      </Paper>
    </Center>
  )
}

/** The page's heading: gets the focus after navigation and names the document. */
import { Group, Stack, Text, Title } from '@mantine/core'
import { useEffect, useRef, type ReactNode } from 'react'
import { text } from '../words/shell'
import classes from './parts.module.css'

// At load, the focus stays at the beginning of the document, where the skip link is.
let isFirst = true

export function PageHeader({ title, about, actions }: {
  readonly title: string
  /** A sentence below the heading. */
  readonly about?: ReactNode
  /** Buttons to its right. */
  readonly actions?: ReactNode
}) {
  const heading = useRef<HTMLHeadingElement>(null)
  useEffect(() => {
    document.title = `${title} · ${text.service}`
  }, [title])
  useEffect(() => {
    if (isFirst) {
      isFirst = false
      return
    }
    // A dialog or a field that the page opened keeps the focus.
    const focused = document.activeElement
    if (focused === null || focused === document.body || focused.closest('main, [role=dialog]') === null) heading.current?.focus()
  }, [])
  return (
    <Group justify="space-between" align="flex-start" wrap="wrap" mb="md">
      <Stack gap={4} miw={0} flex="1 1 260px">
        <Title order={1} size="h2" ref={heading} tabIndex={-1} className={`${classes.heading ?? ''} ${classes.break ?? ''}`}>{title}</Title>
        {about !== undefined && <Text c="dimmed" size="sm" component="div">{about}</Text>}
      </Stack>
      {actions !== undefined && <Group gap="xs" className={classes.unprinted}>{actions}</Group>}
    </Group>
  )
}

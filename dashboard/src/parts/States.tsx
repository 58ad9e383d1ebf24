/** The states of a page while it loads, when it is empty, and when reading failed. */
import { Alert, Button, Center, Code, Group, Skeleton, Stack, Text, Title } from '@mantine/core'
import { IconAlertTriangle } from '@tabler/icons-react'
import type { ReactNode } from 'react'
import { Refusal, refusalText } from '../rules/refusal'
import { text } from '../words/parts'
import { CopyButton } from './Copy'
import classes from './parts.module.css'

export function Lines({ count = 6, height = 40 }: { readonly count?: number; readonly height?: number }) {
  return (
    <Stack gap="xs" role="status" aria-label={text.loading} data-state="loading">
      {Array.from({ length: count }, (_, line) => <Skeleton key={line} height={height} />)}
    </Stack>
  )
}

export function Empty({ title, children, action }: {
  readonly title: string
  /** What to do next. */
  readonly children?: ReactNode
  readonly action?: ReactNode
}) {
  return (
    <Center py="xl" data-state="empty">
      <Stack align="center" gap="xs" maw={480} ta="center">
        <Title order={2} size="h4">{title}</Title>
        <Text c="dimmed" component="div">{children}</Text>
        {action}
      </Stack>
    </Center>
  )
}

export function Failure({ error, retry, title }: {
  readonly error: unknown
  readonly retry?: (() => void) | undefined
  readonly title?: string
}) {
  const requestId = error instanceof Refusal ? error.requestId : null
  return (
    <Alert color="red" title={title ?? text.failed} icon={<IconAlertTriangle />} role="alert" data-state="error">
      <Stack gap="xs" align="flex-start">
        <Text size="sm" className={classes.break}>{refusalText(error)}</Text>
        {requestId !== null && (
          <Group gap="xs">
            <Text size="sm">{text.requestId}</Text>
            <Code className={classes.break}>{requestId}</Code>
            <CopyButton value={requestId} name={text.requestId} />
          </Group>
        )}
        {retry !== undefined && <Button size="xs" variant="default" onClick={retry}>{text.retry}</Button>}
      </Stack>
    </Alert>
  )
}

interface Asked<T> {
  readonly data: T | undefined
  readonly error: unknown
  readonly isPending: boolean
  readonly refetch: () => unknown
}

/** Skeleton, failure, empty state or content of a query. Old content stays below a failure. */
export function Loaded<T>({ query, skeleton, isEmpty, empty, children }: {
  readonly query: Asked<T>
  readonly skeleton?: ReactNode
  readonly isEmpty?: (data: T) => boolean
  readonly empty?: ReactNode
  readonly children: (data: T) => ReactNode
}) {
  const { data, error } = query
  const failure = error !== null && error !== undefined ? <Failure error={error} retry={() => void query.refetch()} /> : null
  if (data === undefined) return failure ?? skeleton ?? <Lines />
  return (
    <>
      {failure}
      {isEmpty?.(data) === true && empty !== undefined ? empty : children(data)}
    </>
  )
}

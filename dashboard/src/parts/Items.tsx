/** A short list of things with their actions: rows that wrap on narrow screens, and a button for more. */
import { Button, Group, Paper } from '@mantine/core'
import type { ReactNode } from 'react'
import { text } from '../words/parts'
import classes from './parts.module.css'

export function ItemList({ label, hasMore, isLoadingMore, loadMore, children }: {
  readonly label: string
  readonly hasMore?: boolean
  readonly isLoadingMore?: boolean
  readonly loadMore?: () => void
  readonly children: ReactNode
}) {
  return (
    <>
      <Paper withBorder component="ul" aria-label={label} className={classes.items}>{children}</Paper>
      {hasMore === true && (
        <Group justify="center" pt="sm" className={classes.unprinted}>
          <Button variant="default" size="xs" loading={isLoadingMore ?? false} onClick={() => loadMore?.()}>{text.more}</Button>
        </Group>
      )}
    </>
  )
}

export function ItemRow({ children, faded }: { readonly children: ReactNode; readonly faded?: boolean }) {
  return (
    <Group component="li" justify="space-between" gap="sm" px="md" py="sm" className={classes.item} data-faded={faded === true || undefined}>
      {children}
    </Group>
  )
}

/** A list of any length: only the visible rows are in the document. */
import { Box, Button, Group, Loader, Text } from '@mantine/core'
import { useVirtualizer } from '@tanstack/react-virtual'
import { useCallback, useEffect, useRef, type ReactNode } from 'react'
import { text } from '../words/parts'
import classes from './parts.module.css'

const BORDERS = 2

export function VirtualList<Item>({ items, keyOf, row, rowHeight, height, label, hasMore, isLoadingMore, loadMore, loadsItself = true, total }: {
  readonly items: readonly Item[]
  /** Defined outside the component: with another function, the list measures all its rows again. */
  readonly keyOf: (item: Item) => string
  readonly row: (item: Item, index: number) => ReactNode
  /** Pixels; rows don't grow. */
  readonly rowHeight: number | ((item: Item) => number)
  /** The most that the box takes, in CSS; 70vh unless given. */
  readonly height?: string
  readonly label: string
  readonly hasMore?: boolean
  readonly isLoadingMore?: boolean
  readonly loadMore?: () => void
  /** Loads more near the end without a press on the button. */
  readonly loadsItself?: boolean
  /** The text of the last line at the end. */
  readonly total?: string
}) {
  const box = useRef<HTMLDivElement>(null)
  const getItemKey = useCallback((index: number) => {
    const item = items[index]
    return item === undefined ? index : keyOf(item)
  }, [items, keyOf])
  const list = useVirtualizer({
    count: items.length,
    getScrollElement: () => box.current,
    estimateSize: (index) => {
      const item = items[index]
      return typeof rowHeight === 'number' ? rowHeight : item === undefined ? 0 : rowHeight(item)
    },
    getItemKey,
    overscan: 4,
    useFlushSync: false,
  })
  const shown = list.getVirtualItems()
  const last = shown.at(-1)?.index ?? 0
  useEffect(() => {
    if (loadsItself && hasMore === true && isLoadingMore !== true && last >= items.length - 20) loadMore?.()
  }, [loadsItself, hasMore, isLoadingMore, last, items.length, loadMore])
  return (
    <Box>
      <div ref={box} className={classes.scroll} style={{ height: list.getTotalSize() + BORDERS, maxHeight: height ?? '70vh' }} tabIndex={0} role="region" aria-label={label}>
        <div role="list" aria-label={label} style={{ height: list.getTotalSize(), position: 'relative' }}>
          {shown.map((place) => {
            const item = items[place.index]
            return item === undefined ? null : (
              <div
                key={place.key}
                role="listitem"
                aria-posinset={place.index + 1}
                aria-setsize={hasMore === true ? -1 : items.length}
                className={classes.row}
                style={{ height: place.size, transform: `translateY(${String(place.start)}px)` }}
              >
                {row(item, place.index)}
              </div>
            )
          })}
        </div>
      </div>
      <Group justify="center" py="xs" mih={44} className={classes.unprinted}>
        {isLoadingMore === true ? <Loader size="sm" aria-label={text.loading} /> : hasMore === true ? (
          <Button variant="subtle" size="xs" onClick={loadMore}>{text.more}</Button>
        ) : <Text size="sm" c="dimmed">{total ?? text.end}</Text>}
      </Group>
    </Box>
  )
}

/** Every message, live, with filters in the address. */
import { Alert, Button, Group, Loader, Stack, Text } from '@mantine/core'
import { useHotkeys } from '@mantine/hooks'
import { useQueryClient } from '@tanstack/react-query'
import { Suspense, useCallback, useEffect, useMemo, useRef, useState } from 'react'
import { download } from '../../api/client'
import { lastList } from '../../api/last-list'
import { useAccountId, useList, useRead } from '../../api/queries'
import { ExportButton } from '../../parts/ExportButton'
import { later } from '../../parts/later'
import { PageButton, useFilters } from '../../parts/Link'
import { PageHeader } from '../../parts/PageHeader'
import { Allowed } from '../../parts/Role'
import { Empty, Loaded } from '../../parts/States'
import { VirtualList } from '../../parts/VirtualList'
import { writeSearch } from '../../rules/address'
import { EMPTY_PAGES_MAX, emptyPages, FILTERS, join, queryOf, withDays, type Day } from '../../rules/message-list'
import { date, number } from '../../words/format'
import { text } from '../../words/messages'
import { FilterBar } from './FilterBar'
import classes from './messages.module.css'
import { focusedRow, MessageRow, moveFocus, type Listed, useRowHeight } from './MessageRow'
import { Selection } from './Selection'

const CancelMany = later(() => import('./CancelMany'))
const SendAgain = later(() => import('./SendAgain'))

const PAGE = 100
const NONE: ReadonlySet<string> = new Set()
const DAY_HEIGHT = 30

type Line = Listed | Day
const keyOf = (line: Line): string => ('day' in line ? line.at : line.id)

export default function MessagesPage() {
  const [filters, setFilters] = useFilters(FILTERS)
  const query = useMemo(() => queryOf(filters), [filters])
  return (
    <>
      <PageHeader title={text.title} about={text.about} actions={<Actions query={query} />} />
      <Stack gap="sm">
        <FilterBar filters={filters} change={setFilters} />
        <Messages key={writeSearch(query)} query={query} />
      </Stack>
    </>
  )
}

function Actions({ query }: { readonly query: ReturnType<typeof queryOf> }) {
  const [asked, setAsked] = useState<'cancel' | 'again' | null>(null)
  const close = () => setAsked(null)
  return (
    <Group gap="xs">
      <Allowed to="createResend">
        {(control) => <Button {...control} variant="default" aria-haspopup="dialog" onClick={() => setAsked('again')}>{text.many.again}</Button>}
      </Allowed>
      <Allowed to="cancelMessages">
        {(control) => <Button {...control} variant="default" aria-haspopup="dialog" onClick={() => setAsked('cancel')}>{text.many.cancel}</Button>}
      </Allowed>
      <ExportButton operation="exportMessages" save={() => download(`/v1/messages/export${writeSearch(query)}`, 'messages.csv')} />
      <Suspense fallback={null}>
        {asked === 'cancel' && <CancelMany tag={query.tag ?? ''} onClose={close} />}
        {asked === 'again' && <SendAgain tag={query.tag ?? ''} onClose={close} />}
      </Suspense>
    </Group>
  )
}

/** Separate from header and filters, which need not be rendered again for each page that is loaded. */
function Messages({ query }: { readonly query: ReturnType<typeof queryOf> }) {
  const list = useMessages(query)
  const isFiltered = Object.keys(query).length > 0
  const rowHeight = useRowHeight()
  const heightOf = useCallback((line: Line) => ('day' in line ? DAY_HEIGHT : rowHeight), [rowHeight])
  const lines = useMemo(() => withDays(list.items, date), [list.items])
  const [selected, setSelected] = useState<ReadonlySet<string>>(NONE)
  const account = useAccountId()
  useEffect(() => lastList.set({ account, ids: list.items.map(({ id }) => id), search: query }), [account, list.items, query])
  // Also those that are not loaded yet.
  const [isAll, setAll] = useState(false)
  const loaded = useRef<readonly Listed[]>([])
  useEffect(() => { loaded.current = list.items }, [list.items])
  const toggle = useCallback((id: string) => {
    setSelected((before) => {
      const after = new Set(isAll ? loaded.current.map((item) => item.id) : before)
      if (!after.delete(id)) after.add(id)
      return after
    })
    setAll(false)
  }, [isAll])
  const choose = (all: boolean) => { setAll(all); setSelected(NONE) }
  useHotkeys([
    ['j', () => moveFocus(true)],
    ['k', () => moveFocus(false)],
    ['x', () => { const id = focusedRow(); if (id !== undefined) toggle(id) }],
  ])
  return (
    <>
      {list.newer > 0 && (
        <Alert p="xs" role="status" className={classes.newer}>
          <Button size="compact-sm" variant="subtle" onClick={list.showNewer}>
            {list.isGap ? text.newerMany(number(list.newer)) : text.newer(number(list.newer))}
          </Button>
        </Alert>
      )}
      {/* Stays when its work has emptied the list. */}
      {(isAll || selected.size > 0) && (
        <Selection
          selected={isAll ? null : selected} items={list.items} isWhole={!list.query.hasNextPage} query={query}
          onAll={() => choose(true)} onClear={() => choose(false)}
        />
      )}
      <Loaded
        query={list.query}
        isEmpty={() => list.items.length === 0}
        empty={<Nothing isFiltered={isFiltered} isSearching={list.searchesOn} searchOn={list.query.hasNextPage ? list.loadMore : undefined} />}
      >
        {() => (
          <div>
            <Columns />
            <VirtualList<Line>
              key={rowHeight}
              items={lines}
              keyOf={keyOf}
              row={(line) => ('day' in line ? <div className={classes.day}>{line.day}</div> : <MessageRow message={line} isSelected={isAll || selected.has(line.id)} onSelect={toggle} />)}
              rowHeight={heightOf}
              height="max(300px, calc(100dvh - 310px))"
              label={text.list}
              hasMore={list.query.hasNextPage}
              isLoadingMore={list.query.isFetchingNextPage}
              loadMore={list.loadMore}
              loadsItself={list.searchesOn}
              total={text.loaded(list.items.length)}
            />
          </div>
        )}
      </Loaded>
    </>
  )
}

/** All pages read so far, the first of them kept up to date; empty pages in between are skipped. */
function useMessages(query: ReturnType<typeof queryOf>) {
  const account = useAccountId()
  const queries = useQueryClient()
  const key = ['messages', 'list', query] as const
  const pages = useList(
    key,
    (api, cursor) => api.GET('/v1/messages', { params: { query: { ...query, limit: PAGE, cursor } as never } }),
    (page) => page.messages,
  )
  const pageCount = pages.data?.pages.length ?? 0
  // A list of several pages is not read again as a whole: its newest page stands for the rest.
  const newest = useRead(
    ['messages', 'newest', query],
    (api) => api.GET('/v1/messages', { params: { query: { ...query, limit: PAGE } as never } }),
    { enabled: pageCount > 1 },
  )
  const newestRows = pageCount > 1 ? newest.data?.messages : undefined
  const joined = useMemo(() => join<Listed>(pages.items, newestRows ?? []), [pages.items, newestRows])
  const searchesOn = emptyPages(pages.data?.pages ?? []) < EMPTY_PAGES_MAX
  const { hasNextPage, isFetchingNextPage, fetchNextPage } = pages
  const isEmpty = pages.items.length === 0
  useEffect(() => {
    if (isEmpty && hasNextPage && !isFetchingNextPage && searchesOn) void fetchNextPage()
  }, [isEmpty, hasNextPage, isFetchingNextPage, searchesOn, fetchNextPage])
  return {
    query: pages,
    ...joined,
    searchesOn: searchesOn && hasNextPage,
    loadMore: () => void fetchNextPage(),
    showNewer: () => void queries.resetQueries({ queryKey: [account, ...key] }),
  }
}

function Columns() {
  return (
    <div className={`${classes.grid ?? ''} ${classes.head ?? ''}`} aria-hidden="true">
      <span>{text.columns.to}</span>
      <span>{text.columns.status}</span>
      <span>{text.columns.subject}</span>
      <span className={classes.when}>{text.columns.accepted}</span>
    </div>
  )
}

function Nothing({ isFiltered, isSearching, searchOn }: {
  readonly isFiltered: boolean
  readonly isSearching: boolean
  readonly searchOn: (() => void) | undefined
}) {
  if (!isFiltered) return <Empty title={text.none} action={<PageButton to={['start']}>{text.noneAction}</PageButton>}>{text.noneNext}</Empty>
  if (isSearching) {
    return <Stack align="center" py="xl" role="status"><Loader size="sm" aria-hidden="true" /><Text c="dimmed">{text.searching}</Text></Stack>
  }
  if (searchOn !== undefined) {
    return <Empty title={text.paused} action={<Button variant="default" onClick={searchOn}>{text.searchOn}</Button>}>{text.pausedNext}</Empty>
  }
  return <Empty title={text.nothing}>{text.nothingNext}</Empty>
}

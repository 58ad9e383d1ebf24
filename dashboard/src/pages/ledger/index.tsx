/** Every credit, with its reason and its message. */
import { Button, Group, NativeSelect, SimpleGrid, Stack, Text, TextInput } from '@mantine/core'
import { useMediaQuery } from '@mantine/hooks'
import { useMemo } from 'react'
import { download } from '../../api/client'
import { useList, useRead } from '../../api/queries'
import type { components } from '../../api/schema'
import { ExportButton } from '../../parts/ExportButton'
import { PageLink, useFilters } from '../../parts/Link'
import { PageHeader } from '../../parts/PageHeader'
import { Empty, Lines, Loaded } from '../../parts/States'
import { Figure, StatusBadge, type Tone } from '../../parts/Status'
import { VirtualList } from '../../parts/VirtualList'
import { writeSearch } from '../../rules/address'
import { KINDS, LEDGER_FILTERS, ledgerQuery, linesOf, type Kind, type LedgerFilters, type LedgerLine } from '../../rules/ledger'
import { minute, number, signed, utcDay } from '../../words/format'
import { text } from '../../words/ledger'
import classes from './ledger.module.css'

type Line = LedgerLine<components['schemas']['LedgerEntry']>

const ROW = 76
// Reason and message have separate lines, as in the style sheet.
const NARROW = '(max-width: 1100px)'
const NARROW_ROW = 116
const idOf = ({ id }: Line): string => id
const TONES: Readonly<Record<Kind, Tone>> = { grant: 'good', reserve: 'busy', settle: 'plain', release: 'warn', day: 'plain' }

export default function LedgerPage() {
  const [filters, change] = useFilters(LEDGER_FILTERS)
  const isNarrow = useMediaQuery(NARROW, false, { getInitialValueInEffect: false })
  const query = useMemo(() => ledgerQuery(filters), [filters])
  const entries = useList(
    ['ledger', 'list', query],
    (api, cursor) => api.GET('/v1/ledger', { params: { query: { ...query, limit: 100, cursor } as never } }),
    (page) => page.entries,
  )
  const lines = useMemo(() => linesOf(entries.items, entries.hasNextPage), [entries.items, entries.hasNextPage])
  const isFiltered = Object.keys(query).length > 0
  const isEmpty = entries.items.length === 0 && !entries.hasNextPage
  return (
    <>
      <PageHeader
        title={text.title}
        about={text.about}
        actions={<ExportButton operation="exportLedger" save={() => download(`/v1/ledger/export${writeSearch({ ...query })}`, 'ledger.csv')} />}
      />
      <Stack>
        <Balance />
        <Filters filters={filters} change={change} />
        <Loaded
          query={entries}
          isEmpty={() => isEmpty}
          empty={isFiltered ? <Empty title={text.nothing}>{text.nothingNext}</Empty> : <Empty title={text.none}>{text.noneNext}</Empty>}
        >
          {() => (
            <VirtualList
              items={lines}
              keyOf={idOf}
              row={(line) => <LineRow line={line} />}
              key={String(isNarrow)}
              rowHeight={isNarrow ? NARROW_ROW : ROW}
              height="max(320px, calc(100dvh - 430px))"
              label={text.list}
              hasMore={entries.hasNextPage}
              isLoadingMore={entries.isFetchingNextPage}
              loadMore={() => void entries.fetchNextPage()}
            />
          )}
        </Loaded>
      </Stack>
    </>
  )
}

function Balance() {
  const account = useRead(['account'], (api) => api.GET('/v1/account'))
  return (
    <Loaded query={account} skeleton={<Lines count={1} height={96} />}>
      {({ account: { credits } }) => (
        <SimpleGrid cols={{ base: 1, sm: 3 }}>
          <Figure name={text.available} value={number(credits.available)} about={text.availableAbout} />
          <Figure name={text.reserved} value={number(credits.reserved)} about={credits.is_more ? text.reservedMore : text.reservedAbout} />
          <Figure name={text.granted} value={number(credits.granted)} about={text.grantedAbout} />
        </SimpleGrid>
      )}
    </Loaded>
  )
}

function Filters({ filters, change }: { readonly filters: LedgerFilters; readonly change: (changed: Partial<Record<keyof LedgerFilters, string | undefined>>) => void }) {
  const given = (value: string) => (value === '' ? undefined : value)
  return (
    <Group gap="xs" align="flex-end">
      <NativeSelect
        label={text.kind}
        value={filters.kind ?? ''}
        onChange={(event) => change({ kind: given(event.currentTarget.value) })}
        data={[{ value: '', label: text.kindAny }, ...KINDS.map((kind) => ({ value: kind as string, label: text.kinds[kind] }))]}
      />
      <TextInput type="date" label={text.from} title={text.utc} value={filters.from ?? ''} onChange={(event) => change({ from: given(event.currentTarget.value) })} />
      <TextInput type="date" label={text.to} title={text.utc} value={filters.to ?? ''} onChange={(event) => change({ to: given(event.currentTarget.value) })} />
      {filters.message_id !== undefined && (
        <Group gap="xs">
          <Text size="sm" className={classes.break}>{text.ofMessage(filters.message_id)}</Text>
          <Button variant="subtle" size="compact-sm" onClick={() => change({ message_id: undefined })}>{text.remove}</Button>
        </Group>
      )}
    </Group>
  )
}

function LineRow({ line: { entries, kind, amount, spent, returned, open } }: { readonly line: Line }) {
  const [first] = entries
  const isToMany = spent + returned + open > 1
  const why = first.day != null ? text.day(number(first.day.reserved), number(first.day.settled), number(first.day.released))
    : isToMany ? text.recipients([[spent, text.kinds.settle], [returned, text.kinds.release], [open, text.kinds.reserve]])
      : first.why
  return (
    <div className={classes.row}>
      <span className={classes.amount}>{signed(amount)}</span>
      <span className={classes.kind}><StatusBadge state={kind} label={text.kinds[kind]} tone={TONES[kind]} /></span>
      <span className={classes.why} title={why}>{why}</span>
      <span className={classes.mail} title={first.email ?? first.message_id ?? ''}>
        {first.message_id !== null && <PageLink to={['messages', first.message_id]}>{isToMany ? text.toMessage : first.email ?? text.toMessage}</PageLink>}
      </span>
      <time dateTime={first.at} className={classes.when}>{first.day == null ? minute(first.at) : utcDay(first.day.day)}</time>
    </div>
  )
}

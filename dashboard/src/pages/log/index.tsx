import { Button, Group, Stack, Text, TextInput } from '@mantine/core'
import { useState } from 'react'
import { download } from '../../api/client'
import { useList } from '../../api/queries'
import { ExportButton } from '../../parts/ExportButton'
import { useFilters } from '../../parts/Link'
import { LogTable } from '../../parts/LogTable'
import { PageHeader } from '../../parts/PageHeader'
import { Empty, Loaded } from '../../parts/States'
import { writeSearch } from '../../rules/address'
import { text } from '../../words/log'

const NAMES = ['action', 'actor', 'since', 'until'] as const

export default function LogPage() {
  const [filters, setFilters] = useFilters(NAMES)
  const query = instants(filters)
  const log = useList(
    ['log', filters],
    (api, cursor) => api.GET('/v1/audit-log', { params: { query: { ...query, ...(cursor === undefined ? {} : { cursor }) } } }),
    (page) => page.entries,
    { keep: true },
  )
  const isFiltered = Object.keys(filters).length > 0
  return (
    <>
      <PageHeader title={text.title} about={text.about} actions={<ExportButton operation="exportAuditLog" save={() => download(`/v1/audit-log/export${writeSearch(query)}`, 'audit-log.csv')} />} />
      <Filters key={JSON.stringify(filters)} filters={filters} change={setFilters} />
      <Loaded
        query={log}
        isEmpty={() => log.items.length === 0}
        empty={<Empty title={isFiltered ? text.none : text.empty}>{isFiltered ? text.noneNext : text.emptyNext}</Empty>}
      >
        {() => (
          <Stack>
            <LogTable label={text.title} entries={log.items} />
            {log.hasNextPage
              ? <Button variant="default" loading={log.isFetchingNextPage} onClick={() => void log.fetchNextPage()}>{text.more}</Button>
              : <Text c="dimmed" size="sm" ta="center">{text.end}</Text>}
          </Stack>
        )}
      </Loaded>
    </>
  )
}

type Chosen = Partial<Record<(typeof NAMES)[number], string>>

/** Days of the address as instants, in the user's time zone; the last day counts whole. */
function instants({ since, until, ...rest }: Chosen): Chosen {
  const from = since === undefined ? undefined : dayStart(since, 0)
  const to = until === undefined ? undefined : dayStart(until, 1)
  return { ...rest, ...(from === undefined ? {} : { since: from }), ...(to === undefined ? {} : { until: to }) }
}

function dayStart(day: string, later: number): string | undefined {
  const start = new Date(`${day}T00:00:00`)
  if (Number.isNaN(start.getTime())) return undefined
  start.setDate(start.getDate() + later)
  return start.toISOString()
}

function Filters({ filters, change }: { readonly filters: Chosen; readonly change: (changed: Partial<Record<keyof Chosen, string | undefined>>) => void }) {
  const [action, setAction] = useState(filters.action ?? '')
  const [actor, setActor] = useState(filters.actor ?? '')
  const apply = () => change({ action: action.trim() || undefined, actor: actor.trim() || undefined })
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault()
        apply()
      }}
    >
      <Group align="flex-end" mb="md" gap="sm">
        <TextInput label={text.action} placeholder={text.actionHint} value={action} onChange={(event) => setAction(event.currentTarget.value)} onBlur={apply} flex="1 1 200px" />
        <TextInput label={text.actor} placeholder={text.actorHint} value={actor} onChange={(event) => setActor(event.currentTarget.value)} onBlur={apply} flex="1 1 200px" />
        <TextInput type="date" label={text.since} value={filters.since ?? ''} onChange={(event) => change({ since: event.currentTarget.value || undefined })} />
        <TextInput type="date" label={text.until} value={filters.until ?? ''} onChange={(event) => change({ until: event.currentTarget.value || undefined })} />
        <Button type="submit" variant="default">{text.apply}</Button>
        {Object.keys(filters).length > 0 && (
          <Button variant="subtle" onClick={() => change({ action: undefined, actor: undefined, since: undefined, until: undefined })}>{text.clear}</Button>
        )}
      </Group>
    </form>
  )
}

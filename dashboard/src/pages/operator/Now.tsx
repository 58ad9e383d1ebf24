import { List, Stack, Table, Text } from '@mantine/core'
import { useState } from 'react'
import { useRead } from '../../api/queries'
import type { components } from '../../api/schema'
import { PageLink } from '../../parts/Link'
import { PageHeader } from '../../parts/PageHeader'
import { Section } from '../../parts/Section'
import classes from '../../parts/parts.module.css'
import { Lines, Loaded } from '../../parts/States'
import { Figure } from '../../parts/Status'
import { Ago, Moment } from '../../parts/Time'
import { WideTable } from '../../parts/WideTable'
import { ratesOf, type Rates } from '../../rules/lane-rates'
import { duration, number, rate } from '../../words/format'
import { now as text, shared } from '../../words/operator'
import { LaneTable } from './LaneTable'
import own from './operator.module.css'

type Overview = components['schemas']['OperatorOverview']

const ASK_MS = 5_000
const HOUR_MS = 3_600_000

export default function NowPage() {
  const read = useRead(['operator', 'overview'], (api) => api.GET('/v1/operator/overview'), { every: ASK_MS })
  const rates = useRates(read.data)
  return (
    <>
      <PageHeader title={text.title} about={text.about} />
      <Loaded query={read} skeleton={<Lines count={4} height={90} />}>
        {(overview) => (
          <Stack>
            <Figures overview={overview} rates={rates} />
            <Section title={text.lanes} about={text.lanesAbout} mark={<PageLink to={['lanes']} fz="sm">{text.allLanes}</PageLink>}>
              {overview.lanes.length === 0 ? <Text size="sm">{text.noLanes}</Text> : <LaneTable lanes={overview.lanes} label={text.lanes} />}
            </Section>
            {overview.latency.length > 0 && <Latency latency={overview.latency} />}
            {overview.delays.length > 0 && (
              <Section title={text.delays}>
                <List size="sm">
                  {overview.delays.map((delay) => (
                    <List.Item key={delay.provider} className={classes.break ?? ''}>
                      {text.delay(delay.provider, duration(delay.p95_seconds), duration(delay.week_p95_seconds))} <Ago at={delay.since} />
                    </List.Item>
                  ))}
                </List>
              </Section>
            )}
            <Changes overview={overview} />
          </Stack>
        )}
      </Loaded>
    </>
  )
}

function Latency({ latency }: Pick<Overview, 'latency'>) {
  return (
    <Section title={text.latency} about={text.latencyAbout}>
      <WideTable label={text.latency} minWidth={480}>
        <Table.Thead><Table.Tr>{[text.provider, text.delivered, text.half, text.most, text.nearlyAll].map((name) => <Table.Th key={name}>{name}</Table.Th>)}</Table.Tr></Table.Thead>
        <Table.Tbody>
          {latency.map((row) => (
            <Table.Tr key={row.provider}>
              <Table.Td>{row.provider}</Table.Td>
              <Table.Td>{number(row.delivered)}</Table.Td>
              {[row.p50_seconds, row.p95_seconds, row.p99_seconds].map((seconds, place) => <Table.Td key={place}>{duration(seconds)}</Table.Td>)}
            </Table.Tr>
          ))}
        </Table.Tbody>
      </WideTable>
    </Section>
  )
}

/** Rates between the last two readings. */
function useRates(overview: Overview | undefined): Rates | null {
  const [seen, setSeen] = useState<{ readonly before: Overview | null; readonly last: Overview | null }>({ before: null, last: null })
  if (overview !== undefined && overview !== seen.last) setSeen({ before: seen.last, last: overview })
  return seen.last === null ? null : ratesOf(seen.before, seen.last)
}

const counted = ({ count, is_more }: components['schemas']['OperatorCount']) => (is_more ? text.atLeast(number(count)) : number(count))

function Figures({ overview, rates }: { readonly overview: Overview; readonly rates: Rates | null }) {
  const { due, leased, claimed, later, held, recent, workers } = overview
  const atWork = { count: leased.count + claimed.count, is_more: leased.is_more || claimed.is_more }
  const perSecond = (value: number | undefined) => (value === undefined ? shared.none : shared.mailsASecond(rate(value)))
  return (
    <div className={own.figures}>
      <Figure name={text.due} value={counted(due)} about={overview.oldest_due_at === null ? text.noneDue : <>{text.oldest} <Ago at={overview.oldest_due_at} /></>} />
      <Figure name={text.atWork} value={counted(atWork)} about={workers === 0 ? text.noWorkers : text.atWorkAbout(workers)} />
      <Figure name={text.later} value={counted(later)} about={text.laterAbout} />
      <Figure name={text.held} value={counted(held)} about={text.heldAbout} />
      <Figure name={text.delivered} value={perSecond(rates?.delivered)} about={text.sinceStart(number(overview.delivered_total))} />
      <Figure name={text.deferred} value={perSecond(rates?.deferred)} about={text.sinceStart(number(overview.deferred_total))} />
      <Figure
        name={text.accepted} value={number(recent.accepted)}
        about={<>{text.since} <Moment at={recent.since} />: {text.acceptedAbout(number(recent.delivered), number(recent.bounced), number(recent.failed))}</>}
      />
    </div>
  )
}

/** Limit changes and changes by operators, newest first. */
function Changes({ overview }: { readonly overview: Overview }) {
  const since = new Date(overview.at).getTime() - HOUR_MS
  const lines = [
    ...overview.limit_changes.map(({ id, at, lane, what }) => ({ key: `limit change ${String(id)}`, at, said: text.limitChange(lane, what) })),
    ...overview.changes.map(({ at, actor, action, target }, place) => ({ key: `change ${String(place)}`, at, said: text.change(actor, action, target) })),
  ].filter(({ at }) => new Date(at).getTime() >= since).sort((a, b) => b.at.localeCompare(a.at))
  return (
    <Section title={text.changes}>
      {lines.length === 0 ? <Text size="sm">{text.noChanges}</Text> : (
        <List size="sm">
          {lines.map(({ key, at, said }) => <List.Item key={key} className={classes.break ?? ''}><Ago at={at} c="dimmed" /> {said}</List.Item>)}
        </List>
      )}
    </Section>
  )
}

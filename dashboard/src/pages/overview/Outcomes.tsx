import { Paper, Text } from '@mantine/core'
import type { components } from '../../api/schema'
import { useDelivered } from '../../parts/captures'
import { Chart, type Series } from '../../parts/Chart'
import { PageButton, PageLink } from '../../parts/Link'
import { Empty } from '../../parts/States'
import { Figure } from '../../parts/Status'
import { Ago } from '../../parts/Time'
import { isCounting, share, sum } from '../../rules/figures'
import { hour, number, percent, utcDay } from '../../words/format'
import { text } from '../../words/overview'
import classes from './overview.module.css'

type Usage = components['schemas']['UsageResponse']

const SERIES: readonly Series[] = [
  { name: 'delivered', label: text.series.delivered, tone: 'good' },
  { name: 'open', label: text.series.open, tone: 'busy' },
  { name: 'failed', label: text.series.failed, tone: 'warn' },
  { name: 'bounced', label: text.series.bounced, tone: 'bad' },
]

export function Outcomes({ usage, acceptedToday }: { readonly usage: Usage; readonly acceptedToday: number }) {
  const delivered = useDelivered()
  const total = sum(usage.days)
  const counting = isCounting(total.accepted, acceptedToday, usage.now.queued + usage.now.deferred)
  const test = sum(usage.days.map((day) => day.test)).accepted
  return (
    <>
      <div className={classes.figures}>
        <Figure name={text.figures.accepted} value={counting ? text.counting : number(total.accepted)} about={test > 0 ? text.figures.acceptedAbout(number(test)) : undefined} />
        <Figure name={text.figures[delivered]} value={number(total.delivered)} about={part(total.delivered, total.accepted)} />
        <Figure name={text.figures.bounced} value={<Counted count={total.bounced} status="failed" />} about={part(total.bounced, total.accepted)} />
        <Figure name={text.figures.failed} value={<Counted count={total.failed} status="failed" />} about={part(total.failed, total.accepted)} />
        <Waiting now={usage.now} />
      </div>
      <Paper withBorder p="md">
        {counting ? <Text role="status" data-state="counting">{text.countingWhy(acceptedToday)}</Text> : total.accepted === 0
          ? <Empty title={text.none} action={<PageButton to={['start']}>{text.noneAction}</PageButton>}>{text.noneNext}</Empty>
          : <Chart label={usage.hours === null ? text.byDay : text.byHour} series={SERIES.map((series) => ({ ...series, label: series.name === 'delivered' ? text.figures[delivered] : series.label }))} rows={rowsOf(usage)} />}
        {usage.counted_at !== null && <Text size="xs" c="dimmed" mt="xs">{text.counted} <Ago at={usage.counted_at} />{text.countedWhy}</Text>}
      </Paper>
    </>
  )
}

/** Oldest first, as on an axis. */
function rowsOf(usage: Usage) {
  const rows = usage.hours === null
    ? usage.days.map((day) => ({ at: utcDay(day.day), values: values(day) }))
    : usage.hours.map((counted) => ({ at: hour(counted.hour), values: values(counted) }))
  return rows.reverse()
}

const values = ({ delivered, open, failed, bounced }: components['schemas']['UsageCounts']) => ({ delivered, open, failed, bounced })

function part(count: number, whole: number): string | undefined {
  const found = share(count, whole)
  return found === null ? undefined : text.figures.ofAccepted(percent(found))
}

function Counted({ count, status }: { readonly count: number; readonly status: string }) {
  return count === 0 ? number(count) : <PageLink to={['messages']} search={{ status }}>{number(count)}</PageLink>
}

function Waiting({ now }: { readonly now: Usage['now'] }) {
  const count = number(now.queued + now.deferred)
  return (
    <Figure
      name={text.figures.waiting}
      value={now.is_more ? text.figures.waitingMore(count) : count}
      about={now.held > 0 ? text.figures.held(number(now.held)) : text.figures.waitingAbout(number(now.queued), number(now.deferred))}
    />
  )
}

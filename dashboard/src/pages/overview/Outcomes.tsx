import { Paper, Text } from '@mantine/core'
import { useRead } from '../../api/queries'
import type { components } from '../../api/schema'
import { useDelivered } from '../../parts/captures'
import { Chart, type Series } from '../../parts/Chart'
import { PageButton, PageLink } from '../../parts/Link'
import { Empty, Lines } from '../../parts/States'
import { Figure } from '../../parts/Status'
import { Ago } from '../../parts/Time'
import { share, sum } from '../../rules/figures'
import { before, type Before, daysOfBefore, type Range, type Row, uncountedSince } from '../../rules/period'
import { hour, hourOfDay, number, percent, utcDay } from '../../words/format'
import { text } from '../../words/overview'
import classes from './overview.module.css'

type Usage = components['schemas']['UsageResponse']

const SERIES: readonly Series[] = [
  { name: 'delivered', label: text.series.delivered, tone: 'good' },
  { name: 'open', label: text.series.open, tone: 'busy' },
  { name: 'failed', label: text.series.failed, tone: 'warn' },
  { name: 'bounced', label: text.series.bounced, tone: 'bad' },
]

export function Outcomes({ usage, rows, range, createdAt }: {
  readonly usage: Usage
  readonly rows: readonly Row[]
  readonly range: Range
  readonly createdAt: string | undefined
}) {
  const delivered = useDelivered()
  const total = sum(rows)
  const test = sum(rows.map((row) => row.test)).accepted
  const then = useBefore(usage, range, createdAt)
  const newer = useNewer(total.accepted === 0 ? uncountedSince(rows, usage.counted_at, new Date()) : null)
  const time = { after: rows[0]?.start, before: rows.at(-1)?.end }
  return (
    <>
      <div className={classes.figures}>
        <Figure
          name={text.figures.accepted}
          value={newer === 'found' ? text.counting : number(total.accepted)}
          about={<>{then !== null && <div>{text.before.accepted(then.accepted, then.acceptedBefore)}</div>}{test > 0 && <div>{text.figures.acceptedAbout(number(test))}</div>}</>}
        />
        {(['delivered', 'bounced', 'failed'] as const).map((name) => (
          <Figure
            key={name}
            name={text.figures[name === 'delivered' ? delivered : name]}
            value={name === 'delivered' || total[name] === 0 ? number(total[name]) : <PageLink to={['messages']} search={{ status: 'failed', ...time }}>{number(total[name])}</PageLink>}
            about={<Share part={share(total[name], total.accepted)} before={then?.shares[name] ?? null} />}
          />
        ))}
        <Waiting now={usage.now} />
      </div>
      {then !== null && <Text size="sm" c="dimmed">{compared(then, usage)}</Text>}
      <Paper withBorder p="md">
        {total.accepted > 0 ? <Results usage={usage} rows={rows} />
          : newer === 'asked' ? <Lines count={1} height={120} />
          : newer === 'found' ? <Text role="status" data-state="counting">{text.countingWhy}</Text>
          : <Empty title={test > 0 ? text.noneLive : text.none} action={<PageButton to={['start']}>{text.noneAction}</PageButton>}>{text.noneNext}</Empty>}
        {usage.counted_at !== null && <Text size="xs" c="dimmed" mt="xs">{text.counted} <Ago at={usage.counted_at} />{text.countedWhy}</Text>}
      </Paper>
    </>
  )
}

function useBefore(usage: Usage, range: Range, createdAt: string | undefined): Before | null {
  const days = daysOfBefore(usage)
  const by = usage.hours === null ? 'day' : 'hour'
  const read = useRead(['usage', 'before', days, by], (api) => api.GET('/v1/usage', { params: { query: { ...days, by } } }), { enabled: days !== null })
  return read.data === undefined || createdAt === undefined ? null : before(usage, range, read.data, usage.counted_at, createdAt)
}

/** Whether a message was accepted since then. */
function useNewer(since: string | null): 'asked' | 'found' | 'none' {
  const read = useRead(['messages', 'since', since], (api) => api.GET('/v1/messages', { params: { query: { after: since ?? '', limit: 1 } } }), { enabled: since !== null, keep: true })
  if (since === null) return 'none'
  return read.data === undefined ? (read.isPending ? 'asked' : 'none') : read.data.messages.length > 0 ? 'found' : 'none'
}

function Results({ usage, rows }: { readonly usage: Usage; readonly rows: readonly Row[] }) {
  const delivered = useDelivered()
  const isHourly = usage.hours !== null
  return (
    <Chart
      label={isHourly ? text.byHour : text.byDay}
      axis={isHourly ? text.axis.hour : text.axis.day}
      series={SERIES.map((series) => ({ ...series, label: series.name === 'delivered' ? text.figures[delivered] : series.label }))}
      rows={rows.map(({ start, end, delivered: taken, open, failed, bounced }) => ({
        at: isHourly ? hour(start) : utcDay(start),
        ...(isHourly ? { tick: hourOfDay(start) } : {}),
        values: { delivered: taken, open, failed, bounced },
        link: { to: ['messages'], search: { after: start, before: end } },
      }))}
    />
  )
}

function Share({ part, before: then }: { readonly part: number | null; readonly before: number | null }) {
  if (part === null) return null
  const shown = percent(part)
  return (
    <>
      <div>{text.figures.ofAccepted(shown)}</div>
      {then !== null && <div>{percent(then) === shown ? text.before.same : part > then ? text.before.up(percent(then)) : text.before.down(percent(then))}</div>}
    </>
  )
}

function compared(then: Before, usage: Usage): string {
  if (usage.hours !== null) return text.before.hours(then.isLeftOut)
  return text.before.days(utcDay(then.from), utcDay(then.to), then.isLeftOut)
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

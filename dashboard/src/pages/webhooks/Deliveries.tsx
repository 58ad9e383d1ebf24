import { Button, Group, Modal, Select, Stack, Text, Title } from '@mantine/core'
import { useState } from 'react'
import { ItemList, ItemRow } from '../../parts/Items'
import { PageLink, useFilters } from '../../parts/Link'
import { notify, notifyFailure } from '../../parts/notify'
import classes from '../../parts/parts.module.css'
import { Allowed } from '../../parts/Role'
import { Empty, Failure, Loaded } from '../../parts/States'
import { StatusBadge, type Tone } from '../../parts/Status'
import { Ago, Countdown } from '../../parts/Time'
import { text as shared } from '../../words/parts'
import { text } from '../../words/webhooks'
import { answerOf } from './answer'
import { logOf, placeOf, useLog, useReplay, useReplayAll, type EndpointId } from './log'

const HOUR_MS = 60 * 60 * 1000
const SPANS = { hour: HOUR_MS, day: 24 * HOUR_MS, week: 7 * 24 * HOUR_MS } as const
type Span = keyof typeof SPANS
const STATUSES = ['pending', 'succeeded', 'failed'] as const
export const TONES: Readonly<Record<string, Tone>> = { pending: 'busy', succeeded: 'good', failed: 'bad' }

const known = <T extends string>(value: string | undefined, all: readonly T[]): T | undefined => all.find((item) => item === value)
const sinceOf = (span: Span): string => new Date(Date.now() - SPANS[span]).toISOString()

export function Deliveries({ endpoint }: { readonly endpoint: EndpointId }) {
  const operations = logOf(endpoint)
  const [filters, setFilters] = useFilters(['status', 'type', 'time'] as const)
  const status = known(filters.status, STATUSES)
  const type = known(filters.type, operations.types)
  const time = known(filters.time, ['hour', 'day', 'week'] as const)
  const log = useLog(endpoint, [status, type, time], { status, type, since: () => (time === undefined ? null : sinceOf(time)) })
  const replay = useReplay(endpoint)
  const [isReplaying, setReplaying] = useState(false)
  const isFiltered = status !== undefined || type !== undefined || time !== undefined
  const empty = isFiltered ? <Empty title={text.logNoMatch}>{text.logNoMatchNext}</Empty> : <Empty title={text.logEmpty}>{text.logEmptyNext}</Empty>
  const select = (label: string, value: string | undefined, names: Readonly<Record<string, string>>, onChange: (chosen: string | undefined) => void) => (
    <Select label={label} size="xs" w={160} placeholder={text.all} clearable value={value ?? null} onChange={(chosen) => onChange(chosen ?? undefined)} data={Object.entries(names).map(([key, name]) => ({ value: key, label: name }))} />
  )
  return (
    <Stack gap="sm" component="section" aria-label={text.log}>
      <Group justify="space-between" align="flex-end">
        <Title order={2} size="h4">{text.log}</Title>
        <Group align="flex-end" gap="xs">
          {select(text.status, status, text.statuses, (chosen) => setFilters({ status: chosen }))}
          {select(text.type, type, Object.fromEntries(operations.types.map((name) => [name, text.eventNames[name]])), (chosen) => setFilters({ type: chosen }))}
          {select(text.time, time, text.times, (chosen) => setFilters({ time: chosen }))}
          <Allowed to={operations.all.needs}>
            {(control) => <Button {...control} variant="default" size="xs" aria-haspopup="dialog" onClick={() => setReplaying(true)}>{text.replayAll}</Button>}
          </Allowed>
        </Group>
      </Group>
      <Loaded query={log} isEmpty={() => log.items.length === 0 && !log.hasNextPage} empty={empty}>
        {() => (
          <ItemList label={text.log} hasMore={log.hasNextPage} isLoadingMore={log.isFetchingNextPage} loadMore={() => void log.fetchNextPage()}>
            {log.items.map((delivery) => (
              <ItemRow key={delivery.id}>
                <Stack gap={2} miw={0} flex="1 1 260px">
                  <Group gap="xs">
                    <StatusBadge state={delivery.status} label={text.statuses[delivery.status]} tone={TONES[delivery.status] ?? 'plain'} />
                    <PageLink to={placeOf(endpoint, delivery.id)} fw={600}>{text.deliveryOf(delivery.type)}</PageLink>
                  </Group>
                  <Text size="sm" c="dimmed" className={classes.break}>
                    <Ago at={delivery.created_at} /> · {text.attempt(delivery.attempt, delivery.max_attempts)}
                    {delivery.attempt > 0 && ` · ${answerOf(delivery)}`}
                  </Text>
                  {delivery.error !== null && <Text size="sm" className={classes.break} lineClamp={2}>{delivery.error}</Text>}
                  {delivery.next_attempt_at !== null && <Text size="sm">{text.next} <Countdown until={delivery.next_attempt_at} /></Text>}
                </Stack>
                <Allowed to={operations.one.needs}>
                  {(control) => (
                    <Button {...control} variant="default" size="xs" loading={replay.isPending && replay.variables === delivery.id} onClick={() => replay.mutate(delivery.id, { onSuccess: () => notify(text.replayed), onError: notifyFailure })}>{text.replay}</Button>
                  )}
                </Allowed>
              </ItemRow>
            ))}
          </ItemList>
        )}
      </Loaded>
      {isReplaying && <ReplayAll endpoint={endpoint} onClose={() => setReplaying(false)} />}
    </Stack>
  )
}

function ReplayAll({ endpoint, onClose }: { readonly endpoint: EndpointId; readonly onClose: () => void }) {
  const [span, setSpan] = useState<Span>('day')
  const [count, setCount] = useState(0)
  const replay = useReplayAll(endpoint)
  async function run(): Promise<void> {
    // A request adds a bounded number and says where to continue.
    let since: string | null | undefined = sinceOf(span)
    let sum = count
    while (since != null) {
      const answer: Awaited<ReturnType<typeof replay.mutateAsync>> = await replay.mutateAsync(since)
      sum += answer.replayed
      setCount(sum)
      since = answer.next_since
    }
    notify(sum === 0 ? text.replayNone : text.replayedCount(sum))
    onClose()
  }
  return (
    <Modal opened onClose={onClose} title={text.replayAll} closeButtonProps={{ 'aria-label': shared.close }}>
      {/* A refusal is shown below, from the mutation. */}
      <form onSubmit={(event) => { event.preventDefault(); run().catch(() => undefined) }}>
        <Stack>
          <Text size="sm">{text.replayAllWhy}</Text>
          <Select label={text.replaySince} value={span} allowDeselect={false} onChange={(chosen) => setSpan(known(chosen ?? undefined, ['hour', 'day', 'week'] as const) ?? span)} data={Object.entries(text.times).map(([value, label]) => ({ value, label }))} />
          {count > 0 && <Text size="sm" role="status">{text.replayedCount(count)}</Text>}
          {replay.error !== null && <Failure error={replay.error} title={text.replayAll} />}
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>{shared.cancel}</Button>
            <Button type="submit" loading={replay.isPending}>{text.replayAction}</Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  )
}

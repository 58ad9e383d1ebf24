/** Sends failed messages again as new messages: counts them first, then shows the progress. */
import { Button, Group, Modal, Select, SimpleGrid, Stack, Text, TextInput } from '@mantine/core'
import { useState } from 'react'
import { PERIODS, periodStart, type Period, type ToSendAgain } from '../rules/message-list'
import type { Operation } from '../rules/role'
import { minute, number } from '../words/format'
import { text } from '../words/messages'
import { text as shared } from '../words/parts'
import { Allowed } from './Role'
import { Failure } from './States'
import { Figure } from './Status'

interface Resend {
  readonly id: string
  readonly status: string
  readonly dry_run: boolean
  readonly since: string
  readonly until: string
  readonly matched: number
  readonly recipients: number
  readonly resent: number
  readonly no_body: number
  readonly excluded: number
  readonly refused: number
  readonly waiting_for: string | null
  readonly finished_at: string | null
}

interface Work {
  readonly resend: Resend | undefined
  readonly isRunning: boolean
  readonly isBeginning: boolean
  readonly isStopping: boolean
  readonly errors: readonly Error[]
  readonly begin: (asked: Filter & { dry_run: boolean }) => void
  readonly stop: (id: string) => void
  readonly forget: () => void
}

interface Filter {
  message_ids: string[] | null
  since: string | null
  until: string | null
  tag: string | null
  destination: string | null
  metadata: null
}
const UNFILTERED: Filter = { message_ids: null, since: null, until: null, tag: null, destination: null, metadata: null }

export function SendAgain({ work, tag: given = '', range, ids, toStop, onClose }: ToSendAgain & {
  readonly work: Work
  /** The operation that stops the resend. */
  readonly toStop: Operation
  readonly onClose: () => void
}) {
  const [period, setPeriod] = useState<Period>('day')
  const [tag, setTag] = useState(given)
  const [destination, setDestination] = useState('')
  const { resend, isRunning } = work
  const isCounted = resend !== undefined && resend.dry_run && !isRunning && resend.matched > 0
  const changed = work.forget

  function filter(): Filter {
    if (ids !== undefined) return { ...UNFILTERED, message_ids: [...ids] }
    // The same times as in the count: the messages that were counted are sent again.
    const { since, until } = isCounted ? resend : range ?? { since: periodStart(period, new Date()), until: null }
    return { ...UNFILTERED, since, until, tag: tag.trim() === '' ? null : tag.trim(), destination: destination.trim() === '' ? null : destination.trim() }
  }

  return (
    <Modal opened onClose={onClose} size="lg" title={text.many.again} closeButtonProps={{ 'aria-label': shared.close }}>
      <form onSubmit={(event) => { event.preventDefault(); work.begin({ ...filter(), dry_run: !isCounted }) }}>
        <Stack>
          <Text size="sm">{text.many.againWhy}</Text>
          {ids !== undefined ? <Text size="sm">{text.many.selected(ids.length)}</Text> : range !== undefined ? <Text size="sm">{text.many.range(minute(range.since), range.until === null ? null : minute(range.until))}</Text> : <Select label={text.many.since} value={period} allowDeselect={false} disabled={isRunning} onChange={(chosen) => { setPeriod((chosen ?? period) as Period); changed() }} data={Object.keys(PERIODS).map((value) => ({ value, label: text.periods[value as Period] }))} />}
          {ids === undefined && (
            <>
              <TextInput label={text.many.tag} maxLength={128} value={tag} disabled={isRunning} onChange={(event) => { setTag(event.currentTarget.value); changed() }} autoComplete="off" />
              <TextInput label={text.many.destination} value={destination} disabled={isRunning} onChange={(event) => { setDestination(event.currentTarget.value); changed() }} autoComplete="off" spellCheck={false} />
            </>
          )}
          {resend !== undefined && <Progress resend={resend} />}
          {work.errors.map((error) => <Failure key={error.message} error={error} title={text.many.again} />)}
          <Group justify="flex-end">
            {resend !== undefined && !resend.dry_run && isRunning && (
              <Allowed to={toStop}>
                {(control) => <Button {...control} variant="default" loading={work.isStopping} onClick={() => work.stop(resend.id)}>{text.many.stop}</Button>}
              </Allowed>
            )}
            <Button variant="default" onClick={onClose}>{shared.close}</Button>
            {(resend === undefined || resend.dry_run) && (
              <Button type="submit" loading={work.isBeginning || isRunning}>{isCounted ? text.many.againAction(resend.matched) : text.many.count}</Button>
            )}
          </Group>
        </Stack>
      </form>
    </Modal>
  )
}

function Progress({ resend }: { readonly resend: Resend }) {
  const { many } = text
  const figures = {
    [many.matched]: resend.matched, [many.recipients]: resend.recipients, [many.resent]: resend.resent,
    [many.noBody]: resend.no_body, [many.excluded]: resend.excluded, [many.refused]: resend.refused,
  }
  const isOver = resend.finished_at !== null
  const says = resend.dry_run ? (isOver ? null : many.counting) : resend.status === 'stopped' ? many.stopped : isOver ? many.done : many.underWay
  return (
    <Stack gap="sm" role="status" data-resend={resend.status}>
      <SimpleGrid cols={{ base: 2, sm: 3 }}>
        {Object.entries(figures).map(([name, count]) => <Figure key={name} name={name} value={number(count)} />)}
      </SimpleGrid>
      {says !== null && <Text size="sm">{says}</Text>}
      {resend.waiting_for !== null && <Text size="sm">{many.waitingFor(resend.waiting_for)}</Text>}
    </Stack>
  )
}

/** What a message led to: webhook calls and credits. Equal ones are a single line. */
import { Button, Code, Group, Stack, Text } from '@mantine/core'
import { useState } from 'react'
import { useRead, useWrite } from '../../api/queries'
import { First } from '../../parts/First'
import { PageLink } from '../../parts/Link'
import { notify, notifyFailure } from '../../parts/notify'
import { Allowed } from '../../parts/Role'
import { Loaded, Lines } from '../../parts/States'
import { StatusBadge } from '../../parts/Status'
import { Ago, Countdown } from '../../parts/Time'
import { groupBy } from '../../rules/message-story'
import { signed } from '../../words/format'
import { text } from '../../words/message'
import classes from './message.module.css'
import type { Message } from './types'

type Event = Message['events'][number]
type Delivery = Event['webhook_deliveries'][number]

/** Failed calls come first. */
const ORDER = ['failed', 'pending', 'succeeded']
const statusOf = (event: Event): string => event.webhook_deliveries[0]?.status ?? ''
const keyOf = (event: Event): string => [event.type, ...event.webhook_deliveries.map((call) => `${call.status} ${String(call.http_status)} ${call.error ?? ''}`)].join('\n')

export function Webhooks({ message }: { readonly message: Message }) {
  if (message.events.length === 0) return <Text size="sm" c="dimmed">{text.noEvents}</Text>
  const emails = new Map(message.recipients.map(({ id, email }) => [id, email]))
  const groups = groupBy([...message.events].sort((a, b) => ORDER.indexOf(statusOf(a)) - ORDER.indexOf(statusOf(b))), keyOf)
  return (
    <Stack gap="sm">
      <First items={groups}>
        {(shown) => shown.map((events) => <Events key={events[0].id} events={events} nameOf={(event) => emails.get(event.recipient_id) ?? event.recipient_id} />)}
      </First>
    </Stack>
  )
}

function Events({ events, nameOf }: { readonly events: readonly [Event, ...Event[]]; readonly nameOf: (event: Event) => string }) {
  const [isOpen, setOpen] = useState(false)
  const [first] = events
  if (events.length === 1 || isOpen) return events.map((event) => <OneEvent key={event.id} event={event} to={nameOf(event)} />)
  return (
    <div>
      <Group gap="xs"><Code>{first.type}</Code><Text span size="sm">{text.eventCount(events.length)}</Text></Group>
      <Group gap="xs" mt={4}>
        {first.webhook_deliveries.length === 0 ? <Text size="sm" c="dimmed">{text.noDeliveries}</Text> : <Call call={first.webhook_deliveries[0]} />}
        <Button size="compact-xs" variant="default" onClick={() => setOpen(true)}>{text.showEach}</Button>
      </Group>
    </div>
  )
}

function Call({ call }: { readonly call: Delivery | undefined }) {
  if (call === undefined) return null
  const { status } = call
  return (
    <>
      <StatusBadge state={status} label={text.deliveryStates[status]} tone={status === 'succeeded' ? 'good' : status === 'failed' ? 'bad' : 'busy'} />
      <Text size="sm" c="dimmed" className={classes.break}>
        {[text.tries(call.attempt, call.max_attempts), ...(call.http_status === null ? [] : [text.httpStatus(call.http_status)]), ...(call.error === null ? [] : [call.error])].join(' · ')}
      </Text>
    </>
  )
}

function OneEvent({ event, to }: { readonly event: Event; readonly to: string }) {
  const replay = useWrite((api, id: string) => api.POST('/v1/webhook/deliveries/{id}/replay', { params: { path: { id } } }), ['message', 'deliveries'])
  return (
    <div>
      <Group gap="xs"><Code>{event.type}</Code><Text span size="sm" c="dimmed"><Ago at={event.created_at} /></Text></Group>
      <Text size="sm" className={classes.break}>{to}</Text>
      {event.webhook_deliveries.length === 0 && <Text size="sm" c="dimmed">{text.noDeliveries}</Text>}
      {event.webhook_deliveries.map((call) => (
        <Group key={call.id} gap="xs" mt={4}>
          <Call call={call} />
          {call.next_attempt_at !== null && <Text size="sm">{text.nextAt} <Countdown until={call.next_attempt_at} /></Text>}
          <Text span size="sm"><PageLink to={['webhooks', 'account', call.id]}>{text.open}</PageLink></Text>
          <Allowed to="replayWebhookDelivery">
            {(control) => (
              <Button {...control} size="compact-xs" variant="default" aria-label={text.replayNamed(event.type, to)} loading={replay.isPending} onClick={() => replay.mutate(call.id, { onSuccess: () => notify(text.replayed), onError: notifyFailure })}>
                {text.replay}
              </Button>
            )}
          </Allowed>
        </Group>
      ))}
    </div>
  )
}

export function Credits({ id }: { readonly id: string }) {
  const ledger = useRead(['ledger', 'message', id], (api) => api.GET('/v1/ledger', { params: { query: { message_id: id, limit: 100 } } }))
  return (
    <Loaded query={ledger} skeleton={<Lines count={2} height={20} />} isEmpty={({ entries }) => entries.length === 0} empty={<Text size="sm" c="dimmed">{text.noCredits}</Text>}>
      {({ entries }) => (
        <Stack gap={6}>
          {groupBy(entries, ({ kind }) => kind).map((group) => (
            <Group key={group[0].kind} wrap="nowrap" align="flex-start" justify="space-between" gap="xs">
              <Text size="sm" className={classes.break}>{group.length === 1 ? group[0].why : text.creditsOf(group[0].kind, group.length)}</Text>
              <Text size="sm" fw={600} className={classes.whole}>{signed(group.reduce((sum, { amount }) => sum + amount, 0))}</Text>
            </Group>
          ))}
          <Text span size="sm"><PageLink to={['ledger']} search={{ message_id: id }}>{text.toLedger}</PageLink></Text>
        </Stack>
      )}
    </Loaded>
  )
}

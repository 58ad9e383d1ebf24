import { Button, Group, Paper, SimpleGrid, Stack, Text, Title } from '@mantine/core'
import { IconRepeat } from '@tabler/icons-react'
import { CodeBlock, CopyField } from '../../parts/Copy'
import { PageLink, useGo, useParam } from '../../parts/Link'
import { notify, notifyFailure } from '../../parts/notify'
import { PageHeader } from '../../parts/PageHeader'
import classes from '../../parts/parts.module.css'
import { Allowed } from '../../parts/Role'
import { Loaded } from '../../parts/States'
import { StatusBadge } from '../../parts/Status'
import { Steps, type Step } from '../../parts/Steps'
import { Ago, Countdown } from '../../parts/Time'
import { text } from '../../words/webhooks'
import { answerOf } from './answer'
import { TONES } from './Deliveries'
import { idFrom, logOf, placeOf, useDelivery, useReplay, type DeliveryWithAttempts, type EndpointId } from './log'

export default function DeliveryPage() {
  const id = useParam('delivery')
  return <Delivery key={id} id={id} endpoint={idFrom(useParam('id'))} />
}

function Delivery({ id, endpoint }: { readonly id: string; readonly endpoint: EndpointId }) {
  const read = useDelivery(endpoint, id)
  const replay = useReplay(endpoint)
  const go = useGo()
  const present = read.data?.delivery
  const actions = present === undefined ? undefined : (
    <Allowed to={logOf(endpoint).one.needs}>
      {(control) => (
        <Button
          {...control} leftSection={<IconRepeat size={16} />} loading={replay.isPending}
          onClick={() => replay.mutate(id, { onSuccess: ({ delivery }) => { notify(text.replayed); go(placeOf(endpoint, delivery.id)) }, onError: notifyFailure })}
        >
          {text.replay}
        </Button>
      )}
    </Allowed>
  )
  return (
    <>
      <PageLink to={placeOf(endpoint)} size="sm">{text.backToEndpoint}</PageLink>
      <PageHeader
        title={present === undefined ? text.delivery : text.deliveryOf(present.type)} actions={actions}
        about={present && <Group gap="xs"><StatusBadge state={present.status} label={text.statuses[present.status]} tone={TONES[present.status] ?? 'plain'} /><Ago at={present.created_at} /></Group>}
      />
      <Loaded query={read}>{({ delivery }) => <Detail delivery={delivery} endpoint={endpoint} />}</Loaded>
    </>
  )
}

function Detail({ delivery, endpoint }: { readonly delivery: DeliveryWithAttempts; readonly endpoint: EndpointId }) {
  return (
    <Stack gap="lg">
      <Paper withBorder p="md">
        <SimpleGrid cols={{ base: 1, md: 2 }} spacing="sm">
          <CopyField name={text.url} value={delivery.url} label />
          <CopyField name={text.event} value={delivery.event_id} label />
          {delivery.message_id !== null && <Stack gap={0}><Text size="xs" c="dimmed">{text.message}</Text><PageLink to={['messages', delivery.message_id]}>{text.openMessage}</PageLink></Stack>}
          {delivery.replay_of !== null && <Stack gap={0}><Text size="xs" c="dimmed">{text.replayOf}</Text><PageLink to={placeOf(endpoint, delivery.replay_of)}>{delivery.replay_of}</PageLink></Stack>}
        </SimpleGrid>
      </Paper>
      <Stack gap="sm" component="section" aria-label={text.attempts}>
        <Title order={2} size="h4">{text.attempts}</Title>
        {delivery.attempts.length === 0 && <Text c="dimmed">{text.noAttempt}</Text>}
        <Steps steps={stepsOf(delivery)} />
      </Stack>
      <Stack gap="sm" component="section" aria-label={text.request}>
        <Title order={2} size="h4">{text.request}</Title>
        {delivery.request_body === null ? <Text c="dimmed">{text.requestGone}</Text> : <CodeBlock code={delivery.request_body} name={text.requestBody} />}
        {delivery.truncated && <Text size="sm" c="dimmed">{text.truncated}</Text>}
      </Stack>
    </Stack>
  )
}

function stepsOf(delivery: DeliveryWithAttempts): Step[] {
  const made = delivery.attempts.map((attempt, index): Step => ({
    key: String(index),
    title: text.attemptNumber(index + 1),
    at: attempt.at,
    tone: attempt.error === null ? 'good' : 'bad',
    body: (
      <Stack gap={4}>
        <Text size="sm">{answerOf(attempt)}</Text>
        {attempt.error !== null && <Text size="sm" className={classes.break}>{attempt.error}</Text>}
        {attempt.response_body !== null && attempt.response_body !== '' && <CodeBlock code={attempt.response_body} name={text.responseTo(index + 1)} />}
        {attempt.truncated && <Text size="xs" c="dimmed">{text.truncated}</Text>}
      </Stack>
    ),
  }))
  if (delivery.next_attempt_at === null) return made
  const next: Step = { key: 'next', title: text.attemptNumber(made.length + 1), isAhead: true, body: <Text size="sm">{text.next} <Countdown until={delivery.next_attempt_at} /></Text> }
  return [...made, next]
}

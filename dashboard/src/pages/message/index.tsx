/** A message: its result and the reason, its next try, and its content. */
import { Alert, Badge, Button, Code, Grid, Group, Modal, Paper, Stack, Text, Title } from '@mantine/core'
import { useState, type ReactNode } from 'react'
import { useRead, useWrite } from '../../api/queries'
import { CodeBlock, CopyField } from '../../parts/Copy'
import { PageLink, useParam } from '../../parts/Link'
import { notify, notifyFailure } from '../../parts/notify'
import { PageHeader } from '../../parts/PageHeader'
import { Allowed } from '../../parts/Role'
import { Lines, Loaded } from '../../parts/States'
import { StatusBadge } from '../../parts/Status'
import { Ago, Countdown, Moment } from '../../parts/Time'
import { askAgainMs } from '../../rules/message-story'
import { supportReport } from '../../rules/support-report'
import { signed } from '../../words/format'
import { text } from '../../words/message'
import { text as shared } from '../../words/parts'
import { Content } from './Content'
import { Delivery, Fact } from './Delivery'
import classes from './message.module.css'
import { sentence } from './story'
import type { Message } from './types'

export default function MessagePage() {
  const id = useParam('id')
  const read = useRead(['message', id], (api) => api.GET('/v1/messages/{id}', { params: { path: { id } } }), {
    every: (data) => (data === undefined ? 30_000 : askAgainMs(data.message.recipients, data.message.created_at, new Date())),
  })
  return (
    <>
      {read.data === undefined && <PageHeader title={text.title} />}
      <Loaded query={read} skeleton={<Lines />}>
        {({ message }) => <Whole message={message as Message} />}
      </Loaded>
    </>
  )
}

function Whole({ message }: { readonly message: Message }) {
  return (
    <>
      <PageHeader
        title={(message.subject ?? text.forgottenSubject) || text.noSubject}
        about={<Group gap="xs"><StatusBadge state={message.status} /><Text span size="sm" role="status" className={classes.break}>{sentence(message)}</Text></Group>}
        actions={<SupportReport message={message} />}
      />
      {message.is_shortened && <Alert color="yellow" mb="md">{text.shortened}</Alert>}
      <Grid gap="lg">
        <Grid.Col span={{ base: 12, lg: 8 }}>
          <Stack>
            <Section title={text.delivery}><Delivery message={message} /></Section>
            <Section title={text.content}><Content id={message.id} isStored={message.headers !== null} isForgotten={Boolean(message.content)} /></Section>
          </Stack>
        </Grid.Col>
        <Grid.Col span={{ base: 12, lg: 4 }}>
          <Stack>
            <Section title={text.details}><Details message={message} /></Section>
            <Section title={text.webhooks}><Webhooks message={message} /></Section>
            <Section title={text.credits}><Credits id={message.id} /></Section>
          </Stack>
        </Grid.Col>
      </Grid>
    </>
  )
}

function Section({ title, children }: { readonly title: string; readonly children: ReactNode }) {
  return (
    <Paper withBorder p="md" component="section" aria-label={title}>
      <Title order={2} size="h4" mb="sm">{title}</Title>
      {children}
    </Paper>
  )
}

function Details({ message }: { readonly message: Message }) {
  return (
    <dl className={classes.facts}>
      <Fact name={text.detail.id} value={<CopyField value={message.id} name={text.detail.id} />} />
      <Fact name={text.detail.request} value={<CopyField value={message.accepted_request_id} name={text.detail.request} />} />
      <Fact name={text.detail.accepted} value={<Moment at={message.created_at} />} />
      <Fact name={text.detail.from} value={message.from} />
      {message.envelope_from !== message.from && <Fact name={text.detail.envelope} value={message.envelope_from} />}
      <Fact name={text.detail.way} value={text.ways[message.source]} />
      <Fact name={text.detail.credential} value={<PageLink to={['messages']} search={{ credential_id: message.credential.id }}>{message.credential.name ?? message.credential.id}</PageLink>} />
      {message.template !== null && <Fact name={text.detail.template} value={<PageLink to={['templates', message.template]}>{message.template}</PageLink>} />}
      {typeof message.resent_from === 'string' && <Fact name={text.detail.resentFrom} value={<PageLink to={['messages', message.resent_from]}>{message.resent_from}</PageLink>} />}
      {message.tags.length > 0 && <Fact name={text.detail.tags} value={message.tags.map((tag) => <PageLink key={tag} to={['messages']} search={{ tag }}><Badge variant="default" tt="none" mr={4}>{tag}</Badge></PageLink>)} />}
    </dl>
  )
}

function Webhooks({ message }: { readonly message: Message }) {
  const replay = useWrite((api, id: string) => api.POST('/v1/webhook/deliveries/{id}/replay', { params: { path: { id } } }), ['message', 'deliveries'])
  if (message.events.length === 0) return <Text size="sm" c="dimmed">{text.noEvents}</Text>
  const emails = new Map(message.recipients.map(({ id, email }) => [id, email]))
  return (
    <Stack gap="sm">
      {message.events.map((event) => {
        const to = emails.get(event.recipient_id) ?? event.recipient_id
        return (
          <div key={event.id}>
            <Group gap="xs"><Code>{event.type}</Code><Text span size="sm" c="dimmed"><Ago at={event.created_at} /></Text></Group>
            <Text size="sm" className={classes.break}>{to}</Text>
            {event.webhook_deliveries.length === 0 && <Text size="sm" c="dimmed">{text.noDeliveries}</Text>}
            {event.webhook_deliveries.map((delivery) => (
              <Group key={delivery.id} gap="xs" mt={4}>
                <StatusBadge state={delivery.status} label={text.deliveryStates[delivery.status]} tone={delivery.status === 'succeeded' ? 'good' : delivery.status === 'failed' ? 'bad' : 'busy'} />
                <Text size="sm" c="dimmed" className={classes.break}>
                  {[text.tries(delivery.attempt, delivery.max_attempts), ...(delivery.http_status === null ? [] : [text.httpStatus(delivery.http_status)]), ...(delivery.error === null ? [] : [delivery.error])].join(' · ')}
                </Text>
                {delivery.next_attempt_at !== null && <Text size="sm">{text.nextAt} <Countdown until={delivery.next_attempt_at} /></Text>}
                <Text span size="sm"><PageLink to={['webhooks', 'account', delivery.id]}>{text.open}</PageLink></Text>
                <Allowed to="replayWebhookDelivery">
                  {(control) => (
                    <Button {...control} size="compact-xs" variant="default" aria-label={text.replayNamed(event.type, to)} loading={replay.isPending && replay.variables === delivery.id} onClick={() => replay.mutate(delivery.id, { onSuccess: () => notify(text.replayed), onError: notifyFailure })}>
                      {text.replay}
                    </Button>
                  )}
                </Allowed>
              </Group>
            ))}
          </div>
        )
      })}
    </Stack>
  )
}

function Credits({ id }: { readonly id: string }) {
  const ledger = useRead(['ledger', 'message', id], (api) => api.GET('/v1/ledger', { params: { query: { message_id: id, limit: 100 } } }))
  return (
    <Loaded query={ledger} skeleton={<Lines count={2} height={20} />} isEmpty={({ entries }) => entries.length === 0} empty={<Text size="sm" c="dimmed">{text.noCredits}</Text>}>
      {({ entries }) => (
        <Stack gap={6}>
          {entries.map((entry) => (
            <Group key={entry.id} wrap="nowrap" align="flex-start" justify="space-between" gap="xs">
              <Text size="sm" className={classes.break}>{entry.why}</Text>
              <Text size="sm" fw={600} className={classes.whole}>{signed(entry.amount)}</Text>
            </Group>
          ))}
          <Text span size="sm"><PageLink to={['ledger']} search={{ message_id: id }}>{text.toLedger}</PageLink></Text>
        </Stack>
      )}
    </Loaded>
  )
}

function SupportReport({ message }: { readonly message: Message }) {
  const [isOpen, setOpen] = useState(false)
  return (
    <>
      <Button variant="default" aria-haspopup="dialog" onClick={() => setOpen(true)}>{text.report}</Button>
      <Modal opened={isOpen} onClose={() => setOpen(false)} title={text.report} size="lg" closeButtonProps={{ 'aria-label': shared.close }}>
        <Stack>
          <Text size="sm">{text.reportWhy}</Text>
          <CodeBlock code={supportReport(message, location.origin)} name={text.reportText} />
        </Stack>
      </Modal>
    </>
  )
}

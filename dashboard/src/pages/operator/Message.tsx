/** Why a message of any account waits, or how it ended. */
import { Button, Code, Group, Stack, Text } from '@mantine/core'
import { useRead, useWrite } from '../../api/queries'
import type { components } from '../../api/schema'
import { CopyField } from '../../parts/Copy'
import { HtmlFrame } from '../../parts/HtmlFrame'
import { PageLink, useParam } from '../../parts/Link'
import { PageHeader } from '../../parts/PageHeader'
import classes from '../../parts/parts.module.css'
import { Section } from '../../parts/Section'
import { Failure, Loaded } from '../../parts/States'
import { StatusBadge, toneOf } from '../../parts/Status'
import { Steps, type Step } from '../../parts/Steps'
import { Moment } from '../../parts/Time'
import { message as text } from '../../words/operator'

type Message = components['schemas']['ExplainedMessage']
type Recipient = components['schemas']['ExplainedRecipient']

const ASK_MS = 10_000

export default function MessagePage() {
  const id = useParam('id')
  const read = useRead(['operator', 'message', id], (api) => api.GET('/v1/operator/messages/{id}', { params: { path: { id } } }), {
    every: (message) => (message?.status === 'queued' ? ASK_MS : false),
  })
  return (
    <>
      <PageHeader title={text.title} about={<PageLink to={['message-search']}>{text.back}</PageLink>} />
      <Loaded query={read}>
        {(found) => (
          <Stack>
            <Section title={text.about}><About message={found} /></Section>
            {found.recipients.map((recipient, place) => <Section key={place} title={recipient.email} mark={<StatusBadge state={recipient.status} />}><Why recipient={recipient} /></Section>)}
            {found.is_shortened && <Text size="sm" c="dimmed">{text.isShortened}</Text>}
            <Section title={text.content} about={text.contentWhy}><Content id={found.id} /></Section>
          </Stack>
        )}
      </Loaded>
    </>
  )
}

function About({ message }: { readonly message: Message }) {
  return (
    <Stack gap={4}>
      <CopyField value={message.id} name={text.id} />
      <Text size="sm" className={classes.break}>{text.sentBy(message.account, message.from)}</Text>
      <Text size="sm">{text.accepted} <Moment at={message.created_at} /></Text>
      {message.suspended_reason !== null && <Text size="sm" className={classes.break}>{text.suspended(message.suspended_reason)}</Text>}
      <Group gap="md">
        <PageLink to={['queue']} search={{ message: message.id }} fz="sm">{text.inQueue}</PageLink>
        <PageLink to={['queue']} search={{ account: message.account_id }} fz="sm">{text.ofAccount}</PageLink>
      </Group>
    </Stack>
  )
}

function Why({ recipient }: { readonly recipient: Recipient }) {
  const lines = [
    ...(recipient.now === null ? [] : [text.now(recipient.now)]),
    text.why(recipient.why),
    ...(recipient.lane === null ? [] : [text.lane(recipient.lane)]),
    ...(recipient.cause === null ? [] : [text.sender(recipient.what_to_do)]),
    ...(recipient.operator === null ? [] : [text.operator(recipient.operator)]),
  ]
  const steps = recipient.attempts.map(({ started_at: at, outcome, mx_host: server, code, response }, place): Step => ({
    key: String(place),
    title: text.attempt(place + 1, outcome ?? text.noResult, server),
    at,
    tone: outcome === null ? 'plain' : toneOf(outcome),
    body: response === null ? undefined : <Code block className={classes.break ?? ''}>{code === null ? response : `${String(code)} ${response}`}</Code>,
  }))
  return (
    <Stack gap="sm">
      <div>{lines.map((line) => <Text key={line} size="sm" className={classes.break}>{line}</Text>)}</div>
      {steps.length > 0 && <Steps steps={steps} />}
    </Stack>
  )
}

/** Read on request, and once: the customer's log records each time. */
function Content({ id }: { readonly id: string }) {
  const read = useWrite((api) => api.GET('/v1/operator/messages/{id}/content', { params: { path: { id } } }))
  if (read.data === undefined) {
    return (
      <Stack align="flex-start">
        {read.error !== null && <Failure error={read.error} title={text.read} />}
        <Button variant="default" loading={read.isPending} onClick={() => read.mutate()}>{text.read}</Button>
      </Stack>
    )
  }
  const { text: plain, html } = read.data.content
  if (plain !== null) return <Code block className={classes.break ?? ''}>{plain}</Code>
  return html === null ? <Text size="sm">{text.noText}</Text> : <HtmlFrame html={html} />
}

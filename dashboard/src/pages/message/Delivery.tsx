/** The timeline of each recipient. */
import { Accordion, Alert, Badge, Button, Code, Group, Stack, Text } from '@mantine/core'
import type { ReactNode } from 'react'
import { useWrite } from '../../api/queries'
import { PageLink } from '../../parts/Link'
import { notify, notifyFailure } from '../../parts/notify'
import { Allowed } from '../../parts/Role'
import { StatusBadge, toneOf } from '../../parts/Status'
import { Steps, type Step } from '../../parts/Steps'
import { Countdown } from '../../parts/Time'
import { stepsOf } from '../../rules/message-story'
import { duration } from '../../words/format'
import { text } from '../../words/message'
import classes from './message.module.css'
import type { Attempt, Explanation, Message, Recipient } from './types'

const OPEN_MAX = 3

export function Delivery({ message }: { readonly message: Message }) {
  const isShort = message.recipients.length <= OPEN_MAX
  const opened = isShort ? message.recipients : message.recipients.filter(({ status }) => status !== 'delivered').slice(0, OPEN_MAX)
  const deferred = message.recipients.filter(({ status }) => status === 'deferred').length
  const [retry, run] = useRetry(message)
  return (
    <Stack>
      {deferred > 1 && (
        <Group justify="flex-end">
          <Allowed to="retryMessage">
            {(control) => <Button {...control} size="xs" variant="light" loading={retry.isPending} onClick={() => run(null)}>{text.nowAll}</Button>}
          </Allowed>
        </Group>
      )}
      <Accordion multiple defaultValue={opened.map(({ id }) => id)} variant="separated" order={3}>
        {message.recipients.map((recipient) => (
          <Accordion.Item key={recipient.id} value={recipient.id}>
            <Accordion.Control>
              <Group gap="xs" wrap="wrap">
                <StatusBadge state={recipient.waiting?.reason === 'scheduled' ? 'scheduled' : recipient.status} />
                <Text span fw={600} className={classes.break}>{recipient.email}</Text>
                {recipient.field !== 'to' && <Badge size="sm" variant="default" tt="none">{text.field[recipient.field]}</Badge>}
              </Group>
            </Accordion.Control>
            <Accordion.Panel><RecipientSteps recipient={recipient} message={message} /></Accordion.Panel>
          </Accordion.Item>
        ))}
      </Accordion>
    </Stack>
  )
}

/** Makes the next try of an address due, or of all deferred ones. */
function useRetry(message: Message) {
  const retry = useWrite(
    (api, recipient: string | null) => api.POST('/v1/messages/{id}/retry', { params: { path: { id: message.id } }, body: { recipient } }),
    ['message', 'messages'],
  )
  const run = (recipient: string | null) => retry.mutate(recipient, {
    onSuccess: ({ recipients }) => {
      const moved = recipients.filter(({ result }) => result === 'now').length
      notify(moved > 0 ? text.retried(moved) : text.notRetried(recipients[0]?.text ?? ''))
    },
    onError: notifyFailure,
  })
  return [retry, run] as const
}

function RecipientSteps({ recipient, message }: { readonly recipient: Recipient; readonly message: Message }) {
  const steps: Step[] = [{ key: 'accepted', title: acceptedBy(message), at: message.created_at, tone: 'busy' }]
  stepsOf(recipient.attempts, message.created_at).forEach((step, place) => {
    if (step.kind === 'waited') {
      steps.push({ key: `wait ${String(place)}`, title: <Text span c="dimmed" size="sm">{step.isFirst ? text.waitedFirst(step.seconds) : text.waited(step.seconds)}</Text> })
    } else steps.push(attemptStep(step.attempt, step.place, `try ${String(place)}`))
  })
  for (const [place, report] of recipient.reports.entries()) {
    steps.push({ key: `report ${String(place)}`, title: text.reported[report.kind as 'bounce' | 'complaint'], at: report.at, tone: 'bad', body: <Reply code={report.code} reply={report.response ?? report.detail} /> })
  }
  const { waiting } = recipient
  if (waiting !== null) steps.push({ key: 'next', title: text.next, isAhead: true, tone: 'warn', body: <Next recipient={recipient} message={message} reason={waiting.text} nextAt={waiting.next_at} /> })
  const isEnd = waiting === null && recipient.attempts.length === 0
  return (
    <Stack gap="sm">
      {isEnd && <Explained explanation={recipient.explanation} reply={recipient.last_smtp_response} />}
      <Steps steps={steps} />
      {recipient.suppression !== null && recipient.suppression !== undefined && (
        <Alert color="orange" p="xs">
          <Text size="sm">{text.suppressed(recipient.suppression.reason)} <PageLink to={['suppressions']} search={{ search: recipient.email }} underline="always">{text.toSuppression}</PageLink></Text>
        </Alert>
      )}
    </Stack>
  )
}

function acceptedBy(message: Message): string {
  if (message.source === 'test') return text.acceptedTest
  return text.accepted(text.ways[message.source], message.credential.name ?? message.credential.id)
}

function attemptStep(attempt: Attempt, place: number, key: string): Step {
  const { outcome } = attempt
  const title = attempt.is_under_way ? text.underWay(place) : outcome == null ? text.lost(place) : outcome === 'postponed' ? text.postponed : text.attempt(place, text.outcomes[outcome])
  return { key, title, at: attempt.started_at, tone: outcome == null ? 'plain' : toneOf(outcome), body: <AttemptFacts attempt={attempt} /> }
}

function AttemptFacts({ attempt }: { readonly attempt: Attempt }) {
  return (
    <Stack gap={6} mt={4}>
      <Explained explanation={attempt.explanation} reply={null} />
      {attempt.is_ambiguous && <Text size="sm">{text.ambiguous}</Text>}
      {attempt.response !== null && <Reply code={attempt.code} reply={attempt.response} />}
      <dl className={classes.facts}>
        {attempt.mx_host !== null && <Fact name={text.facts.server} value={text.server(attempt.mx_host, attempt.remote_ip)} />}
        {attempt.relay !== null && <Fact name={text.facts.relay} value={attempt.outcome === 'delivered' ? text.tookIt(attempt.relay) : attempt.relay} />}
        {attempt.mx_host !== null && <Fact name={text.facts.tls} value={attempt.tls_version === null ? text.facts.noTls : text.tls(attempt.tls_version, attempt.tls_cipher)} />}
        {attempt.stage !== null && attempt.outcome !== 'delivered' && <Fact name={text.facts.stage} value={text.stages[attempt.stage]} />}
        {attempt.duration_ms !== null && <Fact name={text.facts.took} value={duration(attempt.duration_ms / 1000)} />}
      </dl>
    </Stack>
  )
}

export function Fact({ name, value }: { readonly name: string; readonly value: ReactNode }) {
  return <><dt>{name}</dt><dd>{value}</dd></>
}

function Reply({ code, reply }: { readonly code: number | null; readonly reply: string }) {
  return <Code block className={classes.reply}>{code === null ? reply : `${String(code)} ${reply}`}</Code>
}

function Explained({ explanation, reply }: { readonly explanation: Explanation | undefined; readonly reply: string | null }) {
  if (explanation === undefined) return reply === null ? null : <Text size="sm" className={classes.break}>{reply}</Text>
  const causes: Readonly<Record<string, string>> = text.cause
  return (
    <div>
      <Text size="sm" fw={600}>{explanation.headline}</Text>
      {explanation.cause !== null && <Text size="sm" c="dimmed">{text.causeOf(causes[explanation.cause] ?? explanation.cause)}</Text>}
      {explanation.cause !== null && <Text size="sm">{text.todo(explanation.what_to_do)}</Text>}
    </div>
  )
}

function Next({ recipient, message, reason, nextAt }: { readonly recipient: Recipient; readonly message: Message; readonly reason: string; readonly nextAt: string | null }) {
  const [retry, run] = useRetry(message)
  return (
    <Stack gap={6} mt={4} align="flex-start">
      <Text size="sm" className={classes.break}>{reason}</Text>
      {nextAt !== null && <Text size="sm">{text.nextTry} <Text span fw={600}><Countdown until={nextAt} done={text.due} /></Text></Text>}
      <Allowed to="retryMessage" unless={recipient.status === 'deferred' ? null : text.nowWhy}>
        {(control) => <Button {...control} size="xs" variant="light" loading={retry.isPending} onClick={() => run(recipient.email)}>{text.now}</Button>}
      </Allowed>
    </Stack>
  )
}

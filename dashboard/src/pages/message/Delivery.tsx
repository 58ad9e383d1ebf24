/** The timeline of each recipient. */
import { Accordion, Alert, Badge, Button, Chip, Code, Group, Stack, Text } from '@mantine/core'
import { useState, type ReactNode } from 'react'
import { useWrite } from '../../api/queries'
import { useDelivered } from '../../parts/captures'
import { CopyButton } from '../../parts/Copy'
import { First } from '../../parts/First'
import { PageLink } from '../../parts/Link'
import { notify, notifyFailure } from '../../parts/notify'
import { Allowed } from '../../parts/Role'
import { StatusBadge, toneOf } from '../../parts/Status'
import { Steps, type Step } from '../../parts/Steps'
import { Countdown } from '../../parts/Time'
import { byUrgency, groupBy, recipientState, stepsOf } from '../../rules/message-story'
import { duration } from '../../words/format'
import { text } from '../../words/message'
import { states } from '../../words/parts'
import classes from './message.module.css'
import type { Attempt, Explanation, Message, Recipient } from './types'

const OPEN_MAX = 3
const FILTERED_MIN = 6
const ALL = ''

export function Delivery({ message }: { readonly message: Message }) {
  const isShort = message.recipients.length <= OPEN_MAX
  const recipients = byUrgency(message.recipients, recipientState)
  const opened = isShort ? recipients : recipients.filter(({ status }) => status !== 'delivered').slice(0, OPEN_MAX)
  const deferred = recipients.filter(({ status }) => status === 'deferred').length
  const [only, setOnly] = useState<string | null>(null)
  const [retry, run] = useRetry(message)
  return (
    <Stack>
      {(deferred > 1 || recipients.length >= FILTERED_MIN) && (
        <Group justify="space-between" gap="xs">
          {recipients.length >= FILTERED_MIN && <States recipients={recipients} only={only} onOnly={setOnly} />}
          {deferred > 1 && (
            <Allowed to="retryMessage">
              {(control) => <Button {...control} size="xs" variant="light" loading={retry.isPending} onClick={() => run(null)}>{text.nowAll}</Button>}
            </Allowed>
          )}
        </Group>
      )}
      <First key={only} items={only === null ? recipients : recipients.filter((recipient) => recipientState(recipient) === only)}>
        {(shown) => (
          <Accordion multiple defaultValue={opened.map(({ id }) => id)} variant="separated" order={3}>
            {shown.map((recipient) => (
              <Accordion.Item key={recipient.id} value={recipient.id}>
                <Group gap={0} wrap="nowrap" pr={4}>
                  <Accordion.Control miw={0}>
                    <Group gap="xs" wrap="wrap">
                      <StatusBadge state={recipientState(recipient)} />
                      <Text span fw={600} className={classes.break}>{recipient.email}</Text>
                      {recipient.field !== 'to' && <Badge size="sm" variant="default" tt="none">{text.field[recipient.field]}</Badge>}
                    </Group>
                  </Accordion.Control>
                  <CopyButton value={recipient.email} name={recipient.email} />
                </Group>
                <Accordion.Panel><RecipientSteps recipient={recipient} message={message} /></Accordion.Panel>
              </Accordion.Item>
            ))}
          </Accordion>
        )}
      </First>
    </Stack>
  )
}

/** How many recipients are in each state; a press shows only those. */
function States({ recipients, only, onOnly }: { readonly recipients: readonly Recipient[]; readonly only: string | null; readonly onOnly: (state: string | null) => void }) {
  const delivered = useDelivered()
  const name = (state: string) => (states as Readonly<Record<string, string>>)[state === 'delivered' ? delivered : state] ?? state
  return (
    <Chip.Group value={only ?? ALL} onChange={(chosen) => onOnly(chosen === ALL ? null : chosen)}>
      <Group gap={6} role="group" aria-label={text.onlyState}>
        <Chip size="xs" value={ALL}>{text.all(recipients.length)}</Chip>
        {groupBy(recipients, recipientState).map((group) => {
          const state = recipientState(group[0])
          return <Chip key={state} size="xs" value={state}>{text.ofState(group.length, name(state))}</Chip>
        })}
      </Group>
    </Chip.Group>
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
  const delivered = useDelivered()
  const steps: Step[] = [{ key: 'accepted', title: acceptedBy(message), at: message.created_at, tone: 'busy' }]
  stepsOf(recipient.attempts, message.created_at).forEach((step, place) => {
    if (step.kind === 'waited') {
      steps.push({ key: `wait ${String(place)}`, title: <Text span c="dimmed" size="sm">{step.isFirst ? text.waitedFirst(step.seconds) : text.waited(step.seconds)}</Text> })
    } else steps.push(attemptStep(step.attempt, step.place, `try ${String(place)}`, delivered))
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
          <Text size="sm">{text.suppressedNow(recipient.suppression.reason)} <PageLink to={['suppressions']} search={{ search: recipient.email }} underline="always">{text.toSuppression}</PageLink></Text>
        </Alert>
      )}
    </Stack>
  )
}

function acceptedBy(message: Message): string {
  if (message.source === 'test') return text.acceptedTest
  return text.accepted(text.ways[message.source], message.credential.name ?? message.credential.id)
}

function attemptStep(attempt: Attempt, place: number, key: string, delivered: 'captured' | 'delivered'): Step {
  const { outcome } = attempt
  const title = attempt.is_under_way ? text.underWay(place) : outcome == null ? text.lost(place) : outcome === 'postponed' ? text.postponed : text.attempt(place, text.outcomes[outcome === 'delivered' ? delivered : outcome])
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
  const said = code === null ? reply : `${String(code)} ${reply}`
  return (
    <Group gap={4} wrap="nowrap" align="flex-start">
      <Code block flex={1} miw={0} className={classes.reply}>{said}</Code>
      <CopyButton value={said} name={text.facts.reply} />
    </Group>
  )
}

function Explained({ explanation, reply }: { readonly explanation: Explanation | undefined; readonly reply: string | null }) {
  const delivered = useDelivered()
  if (explanation === undefined) return reply === null ? null : <Text size="sm" className={classes.break}>{reply}</Text>
  const causes: Readonly<Record<string, string>> = text.cause
  return (
    <div>
      <Text size="sm" fw={600}>{explanation.reason === 'delivered' && delivered === 'captured' ? text.capturedHeadline : explanation.headline}</Text>
      {explanation.cause !== null && <Text size="sm" c="dimmed">{text.causeOf(causes[explanation.cause] ?? explanation.cause)}</Text>}
      {explanation.cause !== null && <Text size="sm">{text.todo(explanation.what_to_do)}</Text>}
    </div>
  )
}

function Next({ recipient, message, reason, nextAt }: { readonly recipient: Recipient; readonly message: Message; readonly reason: string; readonly nextAt: string | null }) {
  const [retry, run] = useRetry(message)
  const isDeferred = recipient.status === 'deferred'
  return (
    <Stack gap={6} mt={4} align="flex-start">
      <Text size="sm" className={classes.break}>{reason}</Text>
      {nextAt !== null && <Text size="sm">{text.nextTry} <Text span fw={600}><Countdown until={nextAt} done={text.due} /></Text></Text>}
      {recipientState(recipient) !== 'scheduled' && (
        <Group gap="xs">
          <Allowed to="retryMessage" unless={isDeferred ? null : text.nowWhy}>
            {(control) => <Button {...control} size="xs" variant="light" loading={retry.isPending} onClick={() => run(recipient.email)}>{text.now}</Button>}
          </Allowed>
          {!isDeferred && <Text size="xs" c="dimmed">{text.nowWhy}</Text>}
        </Group>
      )}
    </Stack>
  )
}

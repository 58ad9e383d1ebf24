import { Accordion, Alert, Group, Progress, Stack, Text } from '@mantine/core'
import { IconCircleCheck, IconCircleDashed } from '@tabler/icons-react'
import { useState, type ReactNode } from 'react'
import { useRead } from '../../api/queries'
import { PageLink } from '../../parts/Link'
import { PageHeader } from '../../parts/PageHeader'
import { Lines, Loaded } from '../../parts/States'
import { Ago } from '../../parts/Time'
import { cardsOf, isStepDone, type Card, type CardName, type FoundStep } from '../../rules/first-steps'
import { number } from '../../words/format'
import { text } from '../../words/start'
import { AddDomain, Invite, SecondFactor } from './Links'
import { MakeKey } from './MakeKey'
import { TestMail } from './TestMail'
import { Webhook } from './Webhook'

const ASK_MS = 30_000
// While the page waits for the first request of a program.
const WAIT_MS = 3_000

const isWaiting = (steps: readonly FoundStep[]): boolean => isStepDone(steps, 'key_created') && !isStepDone(steps, 'first_request')

export default function StartPage() {
  const read = useRead(['progress'], (api) => api.GET('/v1/progress'), {
    every: (data) => (data !== undefined && isWaiting(data.steps) ? WAIT_MS : ASK_MS),
  })
  return (
    <>
      <PageHeader title={text.title} about={text.about} />
      <Loaded query={read} skeleton={<Lines count={6} height={56} />}>{({ steps }) => <Cards steps={steps} />}</Loaded>
    </>
  )
}

function Cards({ steps }: { readonly steps: readonly FoundStep[] }) {
  const cards = cardsOf(steps)
  // Open are the next step, the domain that mail needs, and a key that waits; others are folded, unless the user works in them.
  const [chosen, setChosen] = useState<Partial<Record<CardName, boolean>>>({})
  const next = cards.find(({ isDone }) => !isDone)?.name
  const isOpen = (name: CardName) => chosen[name] ?? (name === next || (name === 'domain' && !isStepDone(steps, 'domain_verified')) || (name === 'key' && isWaiting(steps)))
  const open = cards.map(({ name }) => name).filter(isOpen)
  const keep = (name: CardName) => () => setChosen((before) => ({ ...before, [name]: true }))
  const bodies: Readonly<Record<CardName, ReactNode>> = {
    testMail: <TestMail onSent={keep('testMail')} />,
    domain: <AddDomain />,
    key: <MakeKey isMade={isStepDone(steps, 'key_created')} isWaiting={isWaiting(steps)} onMade={keep('key')} />,
    webhook: <Webhook isSaved={isStepDone(steps, 'webhook_saved')} onUse={keep('webhook')} />,
    secondFactor: <SecondFactor />,
    invite: <Invite />,
  }
  const done = cards.filter(({ isDone }) => isDone).length
  const label = text.progress(number(done), number(cards.length))
  return (
    <Stack maw={860}>
      {done === cards.length
        ? <Alert color="teal" title={text.complete}>{text.completeNext} <PageLink to={['overview']}>{text.toOverview}</PageLink></Alert>
        : <div><Text size="sm" mb={4}>{label}</Text><Progress value={(done / cards.length) * 100} color="teal" aria-label={label} /></div>}
      <Accordion
        multiple
        variant="separated"
        order={2}
        aria-label={text.steps}
        value={open}
        onChange={(names) => setChosen((before) => ({ ...before, ...changedCards(open, names as CardName[]) }))}
      >
        {cards.map((card) => (
          <Accordion.Item key={card.name} value={card.name} data-card={card.name} data-done={card.isDone}>
            <Accordion.Control><CardTitle card={card} /></Accordion.Control>
            <Accordion.Panel>{bodies[card.name]}</Accordion.Panel>
          </Accordion.Item>
        ))}
      </Accordion>
    </Stack>
  )
}

/** What the user opened or closed; the other cards change automatically. */
function changedCards(before: readonly CardName[], after: readonly CardName[]): Partial<Record<CardName, boolean>> {
  const opened = after.filter((name) => !before.includes(name)).map((name) => [name, true])
  const closed = before.filter((name) => !after.includes(name)).map((name) => [name, false])
  return Object.fromEntries([...opened, ...closed]) as Partial<Record<CardName, boolean>>
}

function CardTitle({ card }: { readonly card: Card }) {
  return (
    <Group gap="sm" wrap="nowrap">
      {card.isDone
        ? <IconCircleCheck size={22} color="var(--mantine-color-teal-6)" aria-hidden="true" />
        : <IconCircleDashed size={22} color="var(--mantine-color-dimmed)" aria-hidden="true" />}
      <Group flex={1} gap={0} justify="space-between" pr="sm">
        <Text fw={600}>{text.cards[card.name]}</Text>
        {card.isDone && <Text size="sm" c="dimmed">{text.done} {card.at !== null && <Ago at={card.at} />}</Text>}
      </Group>
    </Group>
  )
}

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
  // Done cards fold away, unless the user works in them.
  const [chosen, setChosen] = useState<Partial<Record<CardName, boolean>>>({})
  const open = cards.filter(({ name, isDone }) => chosen[name] ?? !isDone).map(({ name }) => name)
  const keep = (name: CardName) => () => setChosen((before) => ({ ...before, [name]: true }))
  const bodies: Readonly<Record<CardName, ReactNode>> = {
    testMail: <TestMail onSent={keep('testMail')} />,
    domain: <AddDomain />,
    key: <MakeKey isMade={isStepDone(steps, 'key_created')} isWaiting={isWaiting(steps)} />,
    webhook: <Webhook onPing={keep('webhook')} />,
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
        onChange={(names) => setChosen(Object.fromEntries(cards.map(({ name }) => [name, names.includes(name)])))}
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

function CardTitle({ card }: { readonly card: Card }) {
  return (
    <Group gap="sm" wrap="nowrap">
      {card.isDone
        ? <IconCircleCheck size={22} color="var(--mantine-color-teal-6)" aria-hidden="true" />
        : <IconCircleDashed size={22} color="var(--mantine-color-dimmed)" aria-hidden="true" />}
      <Text fw={600} flex={1}>{text.cards[card.name]}</Text>
      {card.isDone && <Text size="sm" c="dimmed" pr="sm">{text.done} {card.at !== null && <Ago at={card.at} />}</Text>}
    </Group>
  )
}

/** Counts recipients first, then changes exactly those. */
import { Button, Group, SegmentedControl, SimpleGrid, Stack, Text, TextInput } from '@mantine/core'
import { useState } from 'react'
import { useWrite } from '../../api/queries'
import type { components } from '../../api/schema'
import { notify } from '../../parts/notify'
import { Allowed } from '../../parts/Role'
import { Section } from '../../parts/Section'
import { Failure } from '../../parts/States'
import { number } from '../../words/format'
import { queue as text } from '../../words/operator'
import { CHOICES, type Choice, type Chosen } from './queue-choice'

const CHANGES = ['hold', 'release', 'retry', 'cancel'] as const
type Change = (typeof CHANGES)[number]
type Asked = components['schemas']['QueueChangeRequest']

const HELP: Readonly<Partial<Record<Choice, string>>> = {
  destination: text.destinationHelp, account: text.accountHelp, message: text.messageHelp, older: text.olderHelp,
}

export function QueueForm({ chosen, change, clear }: {
  readonly chosen: Chosen
  readonly change: (changed: Chosen) => void
  readonly clear: () => void
}) {
  const [typed, setTyped] = useState<Chosen>(chosen)
  const [kind, setKind] = useState<Change>('hold')
  const send = useWrite((api, asked: Asked) => api.POST('/v1/operator/queue', { body: asked }), ['operator'])
  const count = useWrite((api, asked: Asked) => api.POST('/v1/operator/queue', { body: asked }))
  const asked = askedOf(typed, kind)
  const { data: counted, variables } = count
  const isCounted = counted !== undefined && JSON.stringify({ ...asked, dry_run: true }) === JSON.stringify(variables)
  const apply = () => send.mutate({ ...asked, dry_run: false }, {
    onSuccess: ({ recipients }) => {
      notify(text.done(number(recipients)))
      count.reset()
      change(typed)
    },
  })
  return (
    <Section title={text.form}>
      <form onSubmit={(event) => { event.preventDefault(); count.mutate({ ...asked, dry_run: true }) }}>
        <Stack>
          <SimpleGrid cols={{ base: 1, sm: 2, lg: 5 }}>
            {CHOICES.map((choice) => (
              <TextInput
                key={choice} label={text[choice]} description={HELP[choice] ?? ' '} value={typed[choice] ?? ''} autoComplete="off" spellCheck={false}
                {...(choice === 'older' ? { type: 'number', min: 1, max: 500_000 } : {})}
                onChange={({ currentTarget: { value } }) => setTyped({ ...typed, [choice]: value })}
              />
            ))}
          </SimpleGrid>
          <Stack gap={4}>
            <SegmentedControl aria-label={text.change} value={kind} onChange={setKind} data={CHANGES.map((value) => ({ value, label: text.changes[value] }))} />
            <Text size="xs" c="dimmed">{text.changeHelp[kind]}</Text>
          </Stack>
          {count.error !== null && <Failure error={count.error} title={text.count} />}
          {send.error !== null && <Failure error={send.error} title={text.changes[kind]} />}
          {isCounted && (
            <Text role="status">{counted.recipients === 0 ? text.none(number(counted.being_tried)) : text.counted(number(counted.recipients), number(counted.being_tried))}</Text>
          )}
          <Group justify="flex-end">
            <Button variant="subtle" onClick={clear}>{text.clear}</Button>
            <Button type="submit" variant="default" loading={count.isPending} disabled={CHOICES.every((choice) => (typed[choice] ?? '').trim() === '')}>{text.count}</Button>
            {isCounted && counted.recipients > 0 && (
              <Allowed to="operatorChangeQueue">
                {(control) => <Button {...control} color={kind === 'cancel' ? 'red' : ''} loading={send.isPending} onClick={apply}>{text.apply[kind](number(counted.recipients))}</Button>}
              </Allowed>
            )}
          </Group>
        </Stack>
      </form>
    </Section>
  )
}

function askedOf(typed: Chosen, change: Change): Omit<Asked, 'dry_run'> {
  const given = (choice: Choice) => (typed[choice] ?? '').trim() || null
  const minutes = given('older')
  return {
    change, lane: given('lane'), destination: given('destination'), account: given('account'), message: given('message'),
    older_than_seconds: minutes === null ? null : Math.round(Number(minutes) * 60),
  }
}

import { Anchor, SimpleGrid, Stack, Table, Text } from '@mantine/core'
import { useRead } from '../../api/queries'
import type { components } from '../../api/schema'
import { Foreign } from '../../parts/Foreign'
import { useFilters } from '../../parts/Link'
import { PageHeader } from '../../parts/PageHeader'
import classes from '../../parts/parts.module.css'
import { Section } from '../../parts/Section'
import { Loaded } from '../../parts/States'
import { WideTable } from '../../parts/WideTable'
import { number } from '../../words/format'
import { queue as text } from '../../words/operator'
import { QueueForm } from './QueueForm'
import { CHOICES, type Choice } from './queue-choice'

type Share = components['schemas']['OperatorShare']

const ASK_MS = 10_000
const LANES_SHOWN = 50

export default function QueuePage() {
  const [chosen, setChosen] = useFilters(CHOICES)
  const shares = useRead(['operator', 'queue'], (api) => api.GET('/v1/operator/queue'), { every: ASK_MS })
  const lanes = useRead(['operator', 'lanes'], (api) => api.GET('/v1/operator/lanes'), { every: ASK_MS })
  const choose = (choice: Choice, value: string) => setChosen({ ...CLEARED, [choice]: value })
  return (
    <>
      <PageHeader title={text.title} about={text.about} />
      <Stack>
        <QueueForm key={JSON.stringify(chosen)} chosen={chosen} change={setChosen} clear={() => setChosen(CLEARED)} />
        <SimpleGrid cols={{ base: 1, lg: 3 }}>
          <Section title={text.byLane}>
            <Loaded query={lanes}>
              {(read) => (
                <Shares
                  label={text.byLane} choose={(share) => choose('lane', share.name)}
                  shares={read.lanes.filter(({ waiting }) => waiting > 0).slice(0, LANES_SHOWN).map(({ lane, waiting }) => ({ name: lane, id: null, waiting, held: null }))}
                />
              )}
            </Loaded>
          </Section>
          <Section title={text.byDestination}>
            <Loaded query={shares}>{(read) => <Shares label={text.byDestination} shares={read.destinations} choose={(share) => choose('destination', share.name)} />}</Loaded>
          </Section>
          <Section title={text.byAccount}>
            <Loaded query={shares}>{(read) => <Shares label={text.byAccount} shares={read.accounts} choose={(share) => choose('account', share.id ?? share.name)} />}</Loaded>
          </Section>
        </SimpleGrid>
        {shares.data?.is_more === true && <Text size="sm" c="dimmed">{text.isMore}</Text>}
      </Stack>
    </>
  )
}

const CLEARED: Record<Choice, undefined> = { lane: undefined, destination: undefined, account: undefined, message: undefined, older: undefined }

function Shares({ label, shares, choose }: {
  readonly label: string
  readonly shares: readonly (Omit<Share, 'held'> & { readonly held: number | null })[]
  readonly choose: (share: Pick<Share, 'name' | 'id'>) => void
}) {
  if (shares.length === 0) return <Text size="sm">{text.nothing}</Text>
  const hasHeld = shares.some(({ held }) => held !== null)
  return (
    <WideTable label={label} minWidth={300}>
      <Table.Thead>
        <Table.Tr>{[text.name, text.waiting, ...(hasHeld ? [text.held] : [])].map((name) => <Table.Th key={name}>{name}</Table.Th>)}</Table.Tr>
      </Table.Thead>
      <Table.Tbody>
        {shares.map((share) => (
          <Table.Tr key={share.id ?? share.name}>
            <Table.Td className={classes.rest ?? ''}>
              <Anchor component="button" type="button" fz="sm" aria-label={text.chooseNamed(share.name)} onClick={() => choose(share)}><Foreign text={share.name} /></Anchor>
            </Table.Td>
            <Table.Td>{number(share.waiting)}</Table.Td>
            {hasHeld && <Table.Td>{number(share.held ?? 0)}</Table.Td>}
          </Table.Tr>
        ))}
      </Table.Tbody>
    </WideTable>
  )
}

import { List, Stack, Table, Text } from '@mantine/core'
import { useRead } from '../../api/queries'
import type { components } from '../../api/schema'
import { Chart } from '../../parts/Chart'
import { PageHeader } from '../../parts/PageHeader'
import classes from '../../parts/parts.module.css'
import { Section } from '../../parts/Section'
import { Empty, Loaded } from '../../parts/States'
import { StatusBadge, type Tone } from '../../parts/Status'
import { Ago } from '../../parts/Time'
import { WideTable } from '../../parts/WideTable'
import { laneName, warmUpRows } from '../../rules/operator-plots'
import { list, number } from '../../words/format'
import { addresses as text, shared } from '../../words/operator'

const TONES: readonly Tone[] = ['good', 'busy', 'warn', 'bad', 'plain']

export default function AddressesPage() {
  const read = useRead(['operator', 'addresses'], (api) => api.GET('/v1/operator/addresses'))
  const names = [text.address, text.hostname, text.pool, text.state, text.listedBy, text.findings, text.warmUp, text.checked]
  return (
    <>
      <PageHeader title={text.title} about={text.about} />
      <Loaded query={read} isEmpty={({ addresses }) => addresses.length === 0} empty={<Empty title={text.none}>{text.noneNext}</Empty>}>
        {({ addresses }) => (
          <Stack>
            <WideTable label={text.title} minWidth={900}>
              <Table.Thead><Table.Tr>{names.map((name) => <Table.Th key={name}>{name}</Table.Th>)}</Table.Tr></Table.Thead>
              <Table.Tbody>
                {addresses.map((address) => (
                  <Table.Tr key={address.ip}>
                    <Table.Td>{address.ip}</Table.Td>
                    <Table.Td>{address.hostname}</Table.Td>
                    <Table.Td>{address.pool}</Table.Td>
                    <Table.Td><StatusBadge state={address.state} label={(text.states as Readonly<Record<string, string>>)[address.state] ?? address.state} tone={address.state === 'active' ? 'good' : 'plain'} /></Table.Td>
                    <Table.Td>{address.listed_by.length === 0 ? text.notListed : list(address.listed_by)}</Table.Td>
                    <Table.Td className={classes.sentences ?? ''}>
                      {address.findings.length === 0 ? text.well : <Stack gap={2}>{address.findings.map((finding) => <Text key={finding} size="sm">{finding}</Text>)}</Stack>}
                    </Table.Td>
                    <Table.Td>{address.warms_up_since === null ? shared.none : <Ago at={address.warms_up_since} />}</Table.Td>
                    <Table.Td>{address.checked_at === null ? text.never : <Ago at={address.checked_at} />}</Table.Td>
                  </Table.Tr>
                ))}
              </Table.Tbody>
            </WideTable>
            {addresses.filter(({ warm_ups: warmUps }) => warmUps.length > 0).map((address) => <WarmUp key={address.ip} address={address} />)}
          </Stack>
        )}
      </Loaded>
    </>
  )
}

/** For the lanes with the largest quotas: how many emails each accepted, day by day. */
function WarmUp({ address: { ip, warm_ups: lanes } }: { readonly address: components['schemas']['OperatorAddress'] }) {
  const series = lanes.map(({ lane }, place) => ({ name: laneName(place), label: lane, tone: TONES[place] ?? 'plain' }))
  return (
    <Section title={text.warmUpOf(ip)}>
      <List size="sm">
        {lanes.map(({ lane, day, accepted, quota }) => (
          <List.Item key={lane} className={classes.break ?? ''}>{text.warmUpToday(lane, number(day), number(accepted), number(quota))}</List.Item>
        ))}
      </List>
      <Chart label={text.byDay} kind="lines" series={series} rows={warmUpRows(lanes, text.daysAgo)} />
    </Section>
  )
}

import { Code, Stack, Table, Text } from '@mantine/core'
import { useRead } from '../../api/queries'
import { PageHeader } from '../../parts/PageHeader'
import { Empty, Loaded } from '../../parts/States'
import { Moment } from '../../parts/Time'
import { WideTable } from '../../parts/WideTable'
import { log as text, shared } from '../../words/operator'

const SHOWN = 100

export default function LogPage() {
  const read = useRead(['operator', 'log'], (api) => api.GET('/v1/operator/log', { params: { query: { limit: SHOWN } } }))
  const names = [text.time, text.actor, text.action, text.target, text.account, text.detail]
  return (
    <>
      <PageHeader title={text.title} about={text.about} />
      <Loaded query={read} isEmpty={({ entries }) => entries.length === 0} empty={<Empty title={text.none}>{text.noneNext}</Empty>}>
        {({ entries }) => (
          <WideTable label={text.title} minWidth={820}>
            <Table.Thead><Table.Tr>{names.map((name) => <Table.Th key={name}>{name}</Table.Th>)}</Table.Tr></Table.Thead>
            <Table.Tbody>
              {entries.map((entry, place) => (
                <Table.Tr key={`${entry.at} ${String(place)}`}>
                  <Table.Td><Moment at={entry.at} /></Table.Td>
                  <Table.Td>{entry.actor}</Table.Td>
                  <Table.Td><Code>{entry.action}</Code></Table.Td>
                  <Table.Td>{entry.target}</Table.Td>
                  <Table.Td>{entry.account ?? shared.none}</Table.Td>
                  <Table.Td>
                    <Stack gap={0}>
                      {Object.entries(entry.detail).map(([name, value]) => <Text key={name} size="sm">{`${name}: ${typeof value === 'string' ? value : JSON.stringify(value)}`}</Text>)}
                    </Stack>
                  </Table.Td>
                </Table.Tr>
              ))}
            </Table.Tbody>
          </WideTable>
        )}
      </Loaded>
    </>
  )
}

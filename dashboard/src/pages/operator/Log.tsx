import { Code, Table } from '@mantine/core'
import { useRead } from '../../api/queries'
import { Foreign } from '../../parts/Foreign'
import { LogDetail } from '../../parts/LogTable'
import { PageHeader } from '../../parts/PageHeader'
import classes from '../../parts/parts.module.css'
import { Empty, Loaded } from '../../parts/States'
import { Clock } from '../../parts/Time'
import { DayRows, WideTable } from '../../parts/WideTable'
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
            <DayRows items={entries} at={(entry) => entry.at} columns={names.length} row={(entry, place) => (
              <Table.Tr key={`${entry.at} ${String(place)}`}>
                <Table.Td><Clock at={entry.at} /></Table.Td>
                <Table.Td><Foreign text={entry.actor} /></Table.Td>
                <Table.Td><Code>{entry.action}</Code></Table.Td>
                <Table.Td><Foreign text={entry.target} /></Table.Td>
                <Table.Td>{entry.account === null ? shared.none : <Foreign text={entry.account} />}</Table.Td>
                <Table.Td className={classes.sentences ?? ''}><LogDetail detail={entry.detail} /></Table.Td>
              </Table.Tr>
            )} />
          </WideTable>
        )}
      </Loaded>
    </>
  )
}

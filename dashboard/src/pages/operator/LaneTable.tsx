import { Group, Table, Text } from '@mantine/core'
import { Foreign } from '../../parts/Foreign'
import { PageLink } from '../../parts/Link'
import classes from '../../parts/parts.module.css'
import { Ago } from '../../parts/Time'
import { WideTable } from '../../parts/WideTable'
import { number, rate } from '../../words/format'
import { lanes as text, shared } from '../../words/operator'
import { LaneBadge, type Lane } from './shared'

export function LaneTable({ lanes, label }: { readonly lanes: readonly Lane[]; readonly label: string }) {
  return (
    <WideTable label={label} minWidth={860}>
      <Table.Thead>
        <Table.Tr>
          {[text.lane, text.state, text.waiting, text.inFlight, text.connections, text.rate, text.ceiling, text.rest, text.lastReply].map((name) => <Table.Th key={name}>{name}</Table.Th>)}
        </Table.Tr>
      </Table.Thead>
      <Table.Tbody>{lanes.map((lane) => <Row key={lane.lane} lane={lane} />)}</Table.Tbody>
    </WideTable>
  )
}

function Row({ lane }: { readonly lane: Lane }) {
  return (
    <Table.Tr data-lane={lane.lane} data-lane-state={lane.state}>
      <Table.Td><PageLink to={['lanes', lane.lane]}>{lane.lane}</PageLink></Table.Td>
      <Table.Td>
        <Group gap={4} wrap="nowrap"><LaneBadge state={lane.state} />{lane.pinned && <Text size="xs">{text.pinned}</Text>}</Group>
      </Table.Td>
      <Table.Td>{number(lane.waiting)}</Table.Td>
      <Table.Td>{number(lane.in_flight)}</Table.Td>
      <Table.Td>{number(lane.connections)}</Table.Td>
      <Table.Td>{lane.per_second === null ? shared.unlimited : shared.mailsASecond(rate(lane.per_second))}</Table.Td>
      <Table.Td>{lane.ceiling === null ? shared.none : shared.mailsASecond(rate(lane.ceiling))}</Table.Td>
      <Table.Td>{lane.rests_until === null ? shared.none : <Ago at={lane.rests_until} />}</Table.Td>
      <Table.Td className={classes.rest}>{lane.last_reply === null ? shared.none : <Foreign text={lane.last_reply} />}</Table.Td>
    </Table.Tr>
  )
}

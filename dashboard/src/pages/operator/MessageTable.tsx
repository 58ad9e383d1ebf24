/** Messages, newest first, without their subjects. */
import { Table } from '@mantine/core'
import type { components } from '../../api/schema'
import { Foreign } from '../../parts/Foreign'
import { PageLink } from '../../parts/Link'
import classes from '../../parts/parts.module.css'
import { StatusBadge } from '../../parts/Status'
import { Clock } from '../../parts/Time'
import { DayRows, WideTable } from '../../parts/WideTable'
import { messages as text } from '../../words/operator'

type Found = components['schemas']['FoundMessage']

export function MessageTable({ label, messages }: { readonly label: string; readonly messages: readonly Found[] }) {
  const names = [text.accepted, text.status, text.message, text.account, text.to]
  return (
    <WideTable label={label} minWidth={820}>
      <Table.Thead><Table.Tr>{names.map((name) => <Table.Th key={name}>{name}</Table.Th>)}</Table.Tr></Table.Thead>
      <DayRows items={messages} at={(message) => message.created_at} columns={names.length} row={(message) => (
        <Table.Tr key={message.id}>
          <Table.Td><Clock at={message.created_at} /></Table.Td>
          <Table.Td><StatusBadge state={message.status} /></Table.Td>
          <Table.Td><PageLink to={['message-search', message.id]}>{message.id}</PageLink></Table.Td>
          <Table.Td><Foreign text={message.account} /></Table.Td>
          <Table.Td className={classes.rest ?? ''}>
            <Foreign text={message.to.join(', ')} />{message.recipient_count > message.to.length && ` ${text.others(message.recipient_count - message.to.length)}`}
          </Table.Td>
        </Table.Tr>
      )} />
    </WideTable>
  )
}

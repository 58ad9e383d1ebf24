/** Entries of an account's log, newest first. */
import { Code, Table, Text } from '@mantine/core'
import { text } from '../words/log'
import { Foreign } from './Foreign'
import classes from './parts.module.css'
import { Clock } from './Time'
import { DayRows, WideTable } from './WideTable'

interface Entry {
  readonly id: string
  readonly at: string
  readonly actor: { readonly name: string }
  readonly action: string
  readonly target: string
  readonly detail: Readonly<Record<string, unknown>>
}

const NAMES = [text.time, text.actor, text.action, text.target, text.detail]

export function LogTable({ label, entries }: { readonly label: string; readonly entries: readonly Entry[] }) {
  return (
    <WideTable label={label} minWidth={760}>
      <Table.Thead><Table.Tr>{NAMES.map((name) => <Table.Th key={name}>{name}</Table.Th>)}</Table.Tr></Table.Thead>
      <DayRows items={entries} at={(entry) => entry.at} columns={NAMES.length} row={(entry) => (
        <Table.Tr key={entry.id}>
          <Table.Td><Clock at={entry.at} /></Table.Td>
          <Table.Td><Foreign text={entry.actor.name} /></Table.Td>
          <Table.Td><Code>{entry.action}</Code></Table.Td>
          <Table.Td><Foreign text={entry.target} /></Table.Td>
          <Table.Td className={classes.sentences ?? ''}><LogDetail detail={entry.detail} /></Table.Td>
        </Table.Tr>
      )} />
    </WideTable>
  )
}

/** What an entry says besides its action and target. */
export function LogDetail({ detail }: Pick<Entry, 'detail'>) {
  return Object.entries(detail).map(([name, value]) => (
    <Text key={name} size="sm">{name}: <Foreign text={typeof value === 'string' ? value : JSON.stringify(value)} /></Text>
  ))
}

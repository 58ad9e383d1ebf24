/** A message of any account, found by an id or address that a customer quotes. */
import { Stack, Table, Text } from '@mantine/core'
import { useRead } from '../../api/queries'
import type { components } from '../../api/schema'
import { PageLink, useFilters } from '../../parts/Link'
import { PageHeader } from '../../parts/PageHeader'
import { Empty, Loaded } from '../../parts/States'
import { StatusBadge } from '../../parts/Status'
import { Moment } from '../../parts/Time'
import { WideTable } from '../../parts/WideTable'
import { messages as text } from '../../words/operator'
import { SearchForm } from './shared'

type Found = components['schemas']['FoundMessage']

export default function MessagesPage() {
  const [{ q }, setFilters] = useFilters(['q'] as const)
  return (
    <>
      <PageHeader title={text.title} about={text.about} />
      <Stack>
        <SearchForm
          key={q} title={text.title} label={text.quoted} help={text.quotedHelp} maxLength={500}
          given={q ?? ''} onSearch={(typed) => setFilters({ q: typed === '' ? undefined : typed })}
        />
        {q !== undefined && <Results q={q} />}
      </Stack>
    </>
  )
}

function Results({ q }: { readonly q: string }) {
  const read = useRead(['operator', 'messages', q], (api) => api.GET('/v1/operator/messages', { params: { query: { q } } }), { every: false })
  return (
    <Loaded query={read} isEmpty={({ messages }) => messages.length === 0} empty={<Empty title={text.none}>{text.noneNext}</Empty>}>
      {({ messages, is_more: isMore }) => (
        <>
          <FoundTable messages={messages} />
          {isMore && <Text size="sm" c="dimmed">{text.isMore}</Text>}
        </>
      )}
    </Loaded>
  )
}

function FoundTable({ messages }: { readonly messages: readonly Found[] }) {
  const names = [text.message, text.account, text.status, text.to, text.accepted]
  return (
    <WideTable label={text.found} minWidth={760}>
      <Table.Thead><Table.Tr>{names.map((name) => <Table.Th key={name}>{name}</Table.Th>)}</Table.Tr></Table.Thead>
      <Table.Tbody>
        {messages.map((message) => (
          <Table.Tr key={message.id}>
            <Table.Td><PageLink to={['message-search', message.id]}>{message.id}</PageLink></Table.Td>
            <Table.Td>{message.account}</Table.Td>
            <Table.Td><StatusBadge state={message.status} /></Table.Td>
            <Table.Td>{message.to.join(', ')}{message.recipient_count > message.to.length && ` ${text.others(message.recipient_count - message.to.length)}`}</Table.Td>
            <Table.Td><Moment at={message.created_at} /></Table.Td>
          </Table.Tr>
        ))}
      </Table.Tbody>
    </WideTable>
  )
}

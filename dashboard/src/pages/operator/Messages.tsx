/** A message of any account, found by an id or address that a customer quotes. */
import { Stack, Text } from '@mantine/core'
import { useRead } from '../../api/queries'
import { useFilters } from '../../parts/Link'
import { PageHeader } from '../../parts/PageHeader'
import { Empty, Loaded } from '../../parts/States'
import { messages as text } from '../../words/operator'
import { MessageTable } from './MessageTable'
import { SearchForm } from './shared'

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
          <MessageTable label={text.found} messages={messages} />
          {isMore && <Text size="sm" c="dimmed">{text.isMore}</Text>}
        </>
      )}
    </Loaded>
  )
}

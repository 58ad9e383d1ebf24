import { Stack, Text, TextInput } from '@mantine/core'
import { useRead } from '../../api/queries'
import { useFilters } from '../../parts/Link'
import { PageHeader } from '../../parts/PageHeader'
import { Empty, Loaded } from '../../parts/States'
import { lanes as text, shared } from '../../words/operator'
import { LaneTable } from './LaneTable'

const ASK_MS = 10_000

export default function LanesPage() {
  const [{ lane: filter = '' }, setFilters] = useFilters(['lane'] as const)
  const read = useRead(['operator', 'lanes', filter], (api) => api.GET('/v1/operator/lanes', { params: { query: { lane: filter } } }), { every: ASK_MS, keep: true })
  return (
    <>
      <PageHeader title={text.title} about={text.about} />
      <TextInput
        label={shared.filter} placeholder={text.filterHint} value={filter} maw={360} mb="md"
        onChange={(event) => setFilters({ lane: event.currentTarget.value || undefined })}
      />
      <Loaded query={read} isEmpty={({ lanes }) => lanes.length === 0} empty={<Empty title={text.none}>{text.noneNext}</Empty>}>
        {({ lanes, is_more: isMore }) => (
          <Stack>
            <LaneTable lanes={lanes} label={text.title} />
            <Text c="dimmed" size="sm" ta="center">{isMore ? text.isMore : shared.end}</Text>
          </Stack>
        )}
      </Loaded>
    </>
  )
}

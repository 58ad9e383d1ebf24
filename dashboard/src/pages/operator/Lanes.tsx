import { Button, Stack, Text, TextInput } from '@mantine/core'
import { useState } from 'react'
import { useRead } from '../../api/queries'
import { useFilters } from '../../parts/Link'
import { PageHeader } from '../../parts/PageHeader'
import { Empty, Loaded } from '../../parts/States'
import { lanes as text, shared } from '../../words/operator'
import { LaneTable } from './LaneTable'
import type { Lane } from './shared'

// A large installation knows thousands.
const SHOWN = 100
const ASK_MS = 10_000

export default function LanesPage() {
  const [{ lane: filter = '' }, setFilters] = useFilters(['lane'] as const)
  const read = useRead(['operator', 'lanes'], (api) => api.GET('/v1/operator/lanes'), { every: ASK_MS })
  return (
    <>
      <PageHeader title={text.title} about={text.about} />
      <TextInput
        label={shared.filter} placeholder={text.filterHint} value={filter} maw={360} mb="md"
        onChange={(event) => setFilters({ lane: event.currentTarget.value || undefined })}
      />
      <Loaded query={read}>{({ lanes }) => <Found key={filter} lanes={lanes.filter(({ lane }) => lane.includes(filter.trim().toLowerCase()))} />}</Loaded>
    </>
  )
}

function Found({ lanes }: { readonly lanes: readonly Lane[] }) {
  const [count, setCount] = useState(SHOWN)
  if (lanes.length === 0) return <Empty title={text.none}>{text.noneNext}</Empty>
  return (
    <Stack>
      <LaneTable lanes={lanes.slice(0, count)} label={text.title} />
      {lanes.length > count
        ? <Button variant="default" onClick={() => setCount(count + SHOWN)}>{shared.more}</Button>
        : <Text c="dimmed" size="sm" ta="center">{shared.end}</Text>}
    </Stack>
  )
}

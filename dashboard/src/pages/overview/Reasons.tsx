import { Group, Stack, Text } from '@mantine/core'
import { useRead } from '../../api/queries'
import { PageLink } from '../../parts/Link'
import { Section } from '../../parts/Section'
import { Lines, Loaded } from '../../parts/States'
import { StatusBadge } from '../../parts/Status'
import { groupReasons, type GroupedReason } from '../../rules/figures'
import type { Days } from '../../rules/period'
import { list, number } from '../../words/format'
import { providers as names, text } from '../../words/overview'

const SHOWN = 6

export function Reasons({ days }: { readonly days: Days }) {
  const read = useRead(['reasons', days], (api) => api.GET('/v1/reasons', { params: { query: days } }), { keep: true })
  return (
    <Section title={text.reasons} about={text.reasonsAbout}>
      <Loaded query={read} skeleton={<Lines count={3} />} isEmpty={({ reasons }) => reasons.length === 0} empty={<Text size="sm">{text.reasonsNone}</Text>}>
        {({ reasons }) => <Rows reasons={groupReasons(reasons)} />}
      </Loaded>
    </Section>
  )
}

function Rows({ reasons }: { readonly reasons: readonly GroupedReason[] }) {
  const rest = reasons.length - SHOWN
  return (
    <Stack gap="md">
      {reasons.slice(0, SHOWN).map((reason) => <Row key={reason.key} reason={reason} />)}
      {rest > 0 && <Text size="sm" c="dimmed">{text.more(number(rest))}</Text>}
    </Stack>
  )
}

function Row({ reason }: { readonly reason: GroupedReason }) {
  return (
    <div>
      <Group gap="xs" justify="space-between" wrap="nowrap" align="flex-start">
        <Text size="sm" fw={600}>{reason.headline}</Text>
        <StatusBadge state={reason.result} />
      </Group>
      <Text size="sm">{reason.whatToDo}</Text>
      <Group gap="xs">
        <Text size="sm" c="dimmed">{text.reasonAt(number(reason.count), list(reason.providers.map((name) => names[name] ?? name)))}</Text>
        <PageLink to={['messages', reason.exampleId]} fz="sm" aria-label={text.exampleOf(reason.headline)}>{text.example}</PageLink>
      </Group>
    </div>
  )
}

import { SimpleGrid, Stack, Title } from '@mantine/core'
import type { components } from '../../api/schema'
import { Figure } from '../../parts/Status'
import { Ago } from '../../parts/Time'
import { duration, number, percent } from '../../words/format'
import { text } from '../../words/webhooks'

type Health = components['schemas']['WebhookHealth']

export function HealthFigures({ health }: { readonly health: Health }) {
  const { calls, failures, p50_ms: p50, p95_ms: p95, failing_since: since } = health
  // No receiver responds in no time: these calls got no response.
  const isTimed = p50 !== null && p50 > 0
  return (
    <Stack gap="sm" component="section" aria-label={text.health}>
      <Title order={2} size="h4">{text.health}</Title>
      <SimpleGrid cols={{ base: 1, xs: 2, md: 4 }}>
        <Figure name={text.state} value={text.healthStates[health.state]} about={since == null ? undefined : <>{text.failingSince} <Ago at={since} /></>} />
        <Figure name={text.calls} value={number(calls)} />
        <Figure name={text.failures} value={number(failures)} about={calls === 0 ? undefined : text.share(percent(failures / calls))} />
        <Figure name={text.p50} value={isTimed ? duration(p50 / 1000) : text.noTime} about={isTimed && p95 !== null ? text.p95Is(duration(p95 / 1000)) : undefined} />
      </SimpleGrid>
    </Stack>
  )
}

import { Grid, SimpleGrid, Stack, Text } from '@mantine/core'
import { useRead } from '../../api/queries'
import { useFilters } from '../../parts/Link'
import { PageHeader } from '../../parts/PageHeader'
import { Lines, Loaded } from '../../parts/States'
import { dayOf, periodOf, rowsOf } from '../../rules/period'
import { text } from '../../words/overview'
import { Credits, WarmUp } from './Quota'
import { Domains, Webhook } from './Health'
import { Outcomes } from './Outcomes'
import { RangeChoice } from './RangeChoice'
import { Reasons } from './Reasons'
import { Reputation } from './Reputation'
import { Split } from './Split'
import { Times } from './Times'

export default function OverviewPage() {
  const [given, setFilters] = useFilters(['range', 'from', 'to'])
  const today = dayOf(new Date())
  const period = periodOf(given, today)
  const { range, days, by } = period
  const usage = useRead(['usage', range, days], (api) => api.GET('/v1/usage', { params: { query: { ...days, by } } }), { keep: true })
  const account = useRead(['account'], (api) => api.GET('/v1/account'))
  return (
    <>
      <PageHeader title={text.title} about={text.about} actions={<RangeChoice period={period} today={today} change={setFilters} />} />
      <Stack>
        <Loaded query={usage} skeleton={<Lines count={4} height={90} />}>
          {(counted) => {
            const rows = rowsOf(counted, range)
            return (
              <>
                <Outcomes usage={counted} rows={rows} range={range} createdAt={account.data?.account.created_at} />
                {range === '24h' && <Text size="sm" c="dimmed" role="note">{text.wholeDays}</Text>}
                <Split usage={counted} after={`${counted.days.at(-1)?.day ?? ''}T00:00:00Z`} before={rows.at(-1)?.end ?? ''} />
              </>
            )
          }}
        </Loaded>
        <Grid>
          <Grid.Col span={{ base: 12, lg: 6 }}>
            <Loaded query={usage}>{({ providers }) => <Times providers={providers} />}</Loaded>
          </Grid.Col>
          <Grid.Col span={{ base: 12, lg: 6 }}><Reasons days={days} /></Grid.Col>
        </Grid>
        <Loaded query={account} skeleton={<Lines count={2} height={120} />}>
          {(read) => (
            <>
              <Reputation reputation={read.account.reputation} />
              <SimpleGrid cols={{ base: 1, sm: 2, xl: 4 }}>
                <Credits account={read.account} />
                <WarmUp warmup={read.account.warmup} />
                <Domains />
                <Webhook />
              </SimpleGrid>
            </>
          )}
        </Loaded>
      </Stack>
    </>
  )
}

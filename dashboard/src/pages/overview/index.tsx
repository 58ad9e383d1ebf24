import { Grid, SegmentedControl, SimpleGrid, Stack } from '@mantine/core'
import { useRead } from '../../api/queries'
import { useFilters } from '../../parts/Link'
import { PageHeader } from '../../parts/PageHeader'
import { Lines, Loaded } from '../../parts/States'
import { text } from '../../words/overview'
import { Credits, WarmUp } from './Quota'
import { Domains, Webhook } from './Health'
import { Outcomes } from './Outcomes'
import { Reasons } from './Reasons'
import { Reputation } from './Reputation'
import { Times } from './Times'

const PERIODS = ['2', '7', '30'] as const
type Period = (typeof PERIODS)[number]

export default function OverviewPage() {
  const [{ days: given }, setFilters] = useFilters(['days'])
  const period: Period = PERIODS.find((days) => days === given) ?? '7'
  const usage = useRead(
    ['usage', period],
    (api) => api.GET('/v1/usage', { params: { query: { days: Number(period), by: period === '2' ? 'hour' : 'day' } } }),
    { keep: true },
  )
  const account = useRead(['account'], (api) => api.GET('/v1/account'))
  return (
    <>
      <PageHeader
        title={text.title}
        about={text.about}
        actions={
          <SegmentedControl
            aria-label={text.period}
            data={PERIODS.map((value) => ({ value, label: text.periods[value] }))}
            value={period}
            onChange={(value) => setFilters({ days: value === '7' ? undefined : value })}
          />
        }
      />
      <Stack>
        <Loaded query={usage} skeleton={<Lines count={4} height={90} />}>{(counted) => <Outcomes usage={counted} acceptedToday={account.data?.account.warmup.used ?? 0} />}</Loaded>
        <Grid>
          <Grid.Col span={{ base: 12, lg: 6 }}>
            <Loaded query={usage}>{({ providers }) => <Times providers={providers} />}</Loaded>
          </Grid.Col>
          <Grid.Col span={{ base: 12, lg: 6 }}><Reasons days={Number(period)} /></Grid.Col>
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

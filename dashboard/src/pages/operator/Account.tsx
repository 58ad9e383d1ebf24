/** An account: its use, its newest messages, its log, its limits; and changes by operators. */
import { List, SimpleGrid, Stack, Text } from '@mantine/core'
import { useRead } from '../../api/queries'
import type { components } from '../../api/schema'
import { Chart, type Series } from '../../parts/Chart'
import { Foreign } from '../../parts/Foreign'
import { PageLink, useParam } from '../../parts/Link'
import { LogTable } from '../../parts/LogTable'
import { PageHeader } from '../../parts/PageHeader'
import classes from '../../parts/parts.module.css'
import { Section } from '../../parts/Section'
import { Loaded } from '../../parts/States'
import { Figure } from '../../parts/Status'
import { list, number, rate, utcDay } from '../../words/format'
import { account as text } from '../../words/operator'
import { AccountActions } from './AccountActions'
import { MessageTable } from './MessageTable'
import own from './operator.module.css'
import { AccountState } from './shared'

type Detail = components['schemas']['OperatorAccountDetail']

const SERIES: readonly Series[] = [
  { name: 'delivered', label: text.delivered, tone: 'good' }, { name: 'bounced', label: text.bounced, tone: 'bad' }, { name: 'failed', label: text.failed, tone: 'warn' },
]

export default function AccountPage() {
  const account = useParam('id')
  const read = useRead(['operator', 'account', account], (api) => api.GET('/v1/operator/accounts/{account}', { params: { path: { account } } }))
  return (
    <>
      <PageHeader
        title={read.data?.account.name ?? account} about={<PageLink to={['accounts']}>{text.back}</PageLink>}
        actions={read.data !== undefined && <AccountActions detail={read.data} />}
      />
      <Loaded query={read}>
        {(detail) => (
          <Stack>
            <Text component="div"><AccountState account={detail.account} /></Text>
            {detail.account.suspended_reason !== null && <Text className={classes.break}>{text.suspended} <Foreign text={detail.account.suspended_reason} /></Text>}
            <div className={own.figures}>
              <Figure name={text.credits} value={number(detail.account.available)} about={text.granted(number(detail.granted))} />
              <Figure name={text.waiting} value={number(detail.waiting)} about={<PageLink to={['queue']} search={{ account: detail.account.id }}>{text.queue}</PageLink>} />
              <Figure name={text.accepted} value={number(detail.account.accepted)} about={text.lately(number(detail.account.delivered), number(detail.account.bounced), number(detail.account.failed), number(detail.account.erased))} />
            </div>
            <Section title={text.usage} about={text.usageAbout}><Usage days={detail.usage} /></Section>
            <SimpleGrid cols={{ base: 1, md: 3 }}>
              <Section title={text.limits}><Limits limits={detail.limits} /></Section>
              <Section title={text.domains}>
                {detail.domains.length === 0 ? <Text size="sm">{text.noDomains}</Text> : (
                  <List size="sm">{detail.domains.map(({ name, verified_at }) => <List.Item key={name} className={classes.break ?? ''}>{text.domain(name, verified_at !== null)}</List.Item>)}</List>
                )}
              </Section>
              <Section title={text.users}>
                {detail.users.length === 0 ? <Text size="sm">{text.noUsers}</Text> : (
                  <List size="sm">{detail.users.map(({ id, email, role }) => <List.Item key={id} className={classes.break ?? ''}><PageLink to={['users']} search={{ q: id }} underline="always"><Foreign text={email} /></PageLink>, {role}</List.Item>)}</List>
                )}
              </Section>
            </SimpleGrid>
            <Section title={text.messages} about={text.messagesAbout}>
              {detail.messages.length === 0 ? <Text size="sm">{text.noMessages}</Text> : <MessageTable label={text.messages} messages={detail.messages} />}
            </Section>
            <Section title={text.log} about={text.logAbout}>{detail.log.length === 0 ? <Text size="sm">{text.noLog}</Text> : <LogTable label={text.log} entries={detail.log} />}</Section>
          </Stack>
        )}
      </Loaded>
    </>
  )
}

function Usage({ days }: { readonly days: Detail['usage'] }) {
  if (days.every(({ accepted }) => accepted === 0)) return <Text size="sm">{text.noUsage}</Text>
  const rows = days.map(({ day, delivered, bounced, failed }) => ({ at: utcDay(day), values: { delivered, bounced, failed } })).reverse()
  return <Chart label={text.usage} series={SERIES} rows={rows} />
}

function Limits({ limits }: { readonly limits: Detail['limits'] }) {
  const { own_warmup: warmUp } = limits
  return (
    <List size="sm">
      <List.Item>{text.rate(rate(limits.rate_per_second), number(limits.rate_burst), limits.own_rate_per_second !== null || limits.own_rate_burst !== null)}</List.Item>
      <List.Item>
        {warmUp === 'exempt' ? text.exempt : limits.warmup_limit === null ? text.noWarmUp : text.warmUp(number(limits.warmup_day), number(limits.warmup_used), number(limits.warmup_limit))}
      </List.Item>
      {Array.isArray(warmUp) && <List.Item className={classes.break ?? ''}>{text.ownWarmUp(list(warmUp.map(number)))}</List.Item>}
    </List>
  )
}

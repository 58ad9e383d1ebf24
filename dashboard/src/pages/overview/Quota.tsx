import { Progress, Text } from '@mantine/core'
import { useRead } from '../../api/queries'
import type { components } from '../../api/schema'
import { PageLink } from '../../parts/Link'
import { Section } from '../../parts/Section'
import { daysLeft } from '../../rules/figures'
import { minute, number } from '../../words/format'
import { text } from '../../words/overview'

export function Credits({ account }: { readonly account: components['schemas']['Account'] }) {
  const { available, reserved } = account.credits
  const days = useRead(['usage', '7'], (api) => api.GET('/v1/usage', { params: { query: { days: 7, by: 'day' } } })).data?.days
  const left = days === undefined ? undefined : daysLeft(available, days, account.created_at)
  return (
    <Section title={text.credits}>
      <Text fw={700} fz={24}>{number(available)}</Text>
      {left !== undefined && <Text size="sm">{left === null ? text.noUse : text.daysLeft(text.dayCount(left, number(left)))}</Text>}
      {reserved > 0 && <Text size="sm" c="dimmed">{text.creditsReserved(number(reserved))}</Text>}
      <PageLink to={['ledger']} fz="sm">{text.creditsLink}</PageLink>
    </Section>
  )
}

export function WarmUp({ warmup }: { readonly warmup: components['schemas']['WarmUp'] }) {
  const { limit, used, exempt } = warmup
  if (limit === null) {
    return (
      <Section title={text.warmup}>
        <Text fw={600}>{exempt ? text.warmupExempt : text.warmupOver}</Text>
        <Text size="sm" c="dimmed">{text.warmupToday(number(used))}</Text>
      </Section>
    )
  }
  return (
    <Section title={text.warmup}>
      <Text fw={700} fz={24}>{text.warmupDay(number(warmup.day))}</Text>
      <Progress value={limit === 0 ? 100 : Math.min(100, (used / limit) * 100)} color={used >= limit ? 'orange' : 'indigo'} aria-label={text.warmupMeter} />
      <Text size="sm">{text.warmupUsed(number(used), number(limit))} <time dateTime={warmup.resets_at}>{minute(warmup.resets_at)}</time></Text>
    </Section>
  )
}

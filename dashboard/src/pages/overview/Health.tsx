import { Stack, Text } from '@mantine/core'
import { useRead } from '../../api/queries'
import type { components } from '../../api/schema'
import { PageLink } from '../../parts/Link'
import { Section } from '../../parts/Section'
import { Lines, Loaded } from '../../parts/States'
import { StatusBadge, type Tone } from '../../parts/Status'
import { Ago } from '../../parts/Time'
import { duration, number } from '../../words/format'
import { text } from '../../words/overview'
import classes from './overview.module.css'

const SHOWN = 4

export function Domains() {
  const read = useRead(['domains', 'first'], (api) => api.GET('/v1/domains', { params: { query: { limit: 100 } } }))
  return (
    <Section title={text.domains}>
      <Loaded query={read} skeleton={<Lines count={2} height={20} />}>{({ domains }) => <DomainsFound domains={domains.filter(({ shared }) => !shared)} />}</Loaded>
      <PageLink to={['domains']} fz="sm">{text.domainsLink}</PageLink>
    </Section>
  )
}

function DomainsFound({ domains }: { readonly domains: readonly components['schemas']['DomainSummary'][] }) {
  if (domains.length === 0) {
    return <><Text fw={600}>{text.domainsNone}</Text><Text size="sm">{text.domainsNoneAbout}</Text></>
  }
  const verified = domains.filter((domain) => domain.verified).length
  const faulty = domains.filter((domain) => !domain.verified || domain.missing_since !== null)
  return (
    <>
      <Text fw={600}>{text.domainsWell(number(verified))}</Text>
      {faulty.length === 0 && <Text size="sm" c="dimmed">{text.domainsWellAbout}</Text>}
      <Stack gap={4}>
        {faulty.slice(0, SHOWN).map((domain) => (
          <Text key={domain.id} size="sm" className={classes.break}>
            <PageLink to={['domains', domain.name]}>{domain.name}</PageLink>{' '}
            {domain.missing_since === null ? text.domainUnverified : <>{text.domainMissing} <Ago at={domain.missing_since} /></>}
          </Text>
        ))}
      </Stack>
    </>
  )
}

const TONES: Readonly<Record<components['schemas']['WebhookHealth']['state'], Tone>> = { new: 'plain', answering: 'good', failing: 'bad' }

export function Webhook() {
  const read = useRead(['webhook'], (api) => api.GET('/v1/webhook'))
  return (
    <Section title={text.webhook}>
      <Loaded query={read} skeleton={<Lines count={2} height={20} />}>
        {({ webhook, health }) => {
          if (webhook === null) return <><Text fw={600}>{text.webhookNone}</Text><Text size="sm">{text.webhookNoneAbout}</Text></>
          if (!webhook.enabled || health === null) return <Text fw={600}>{text.webhookOff}</Text>
          return <WebhookFound health={health} />
        }}
      </Loaded>
      <PageLink to={['webhooks']} fz="sm">{text.webhookLink}</PageLink>
    </Section>
  )
}

function WebhookFound({ health }: { readonly health: components['schemas']['WebhookHealth'] }) {
  return (
    <>
      <div><StatusBadge state={health.state} label={text.webhookStates[health.state]} tone={TONES[health.state]} /></div>
      <Text size="sm">{text.webhookCalls(number(health.calls), number(health.failures))}</Text>
      {health.p50_ms !== null && health.p95_ms !== null && (
        <Text size="sm" c="dimmed">{text.webhookTimes(duration(health.p50_ms / 1000), duration(health.p95_ms / 1000))}</Text>
      )}
      {health.failing_since !== null && <Text size="sm">{text.webhookSince} <Ago at={health.failing_since} /></Text>}
    </>
  )
}

/** An endpoint, or the classic webhook: its calls, its settings, its log. */
import { Group, Paper, Stack, Text, Title } from '@mantine/core'
import { Suspense, useState, type ReactNode } from 'react'
import { useRead, useWrite } from '../../api/queries'
import type { components } from '../../api/schema'
import { CopyField, SecretOnce } from '../../parts/Copy'
import { later } from '../../parts/later'
import { PageLink, useParam } from '../../parts/Link'
import { notify } from '../../parts/notify'
import { PageHeader } from '../../parts/PageHeader'
import { Empty, Lines, Loaded } from '../../parts/States'
import { StatusBadge } from '../../parts/Status'
import { Countdown } from '../../parts/Time'
import { text } from '../../words/webhooks'
import { Changes, PingButton } from './Changes'
import { Deliveries } from './Deliveries'
import { EndpointForm, UNFILTERED, type Endpoint, type Wish } from './EndpointForm'
import { HealthFigures } from './Health'
import { idFrom, usePing, type EndpointId } from './log'
import { Ping } from './Ping'

const Verify = later(() => import('./Verify'))

type Webhook = components['schemas']['Webhook']
type OnSecret = (secret: string) => void

export default function EndpointPage() {
  const id = idFrom(useParam('id'))
  return id === null ? <ClassicPage /> : <OwnPage key={id} id={id} />
}

function OwnPage({ id }: { readonly id: string }) {
  const read = useRead(['endpoint', id], (api) => api.GET('/v1/endpoints/{id}', { params: { path: { id } } }))
  const endpoint = read.data?.endpoint
  return (
    <Page endpoint={id} present={endpoint ?? null} query={read} health={read.data?.health ?? null}>
      {() => endpoint !== undefined && (
        <>
          {endpoint.previous_secret_until !== null && <Text size="sm">{text.secretUntil} <Countdown until={endpoint.previous_secret_until} /></Text>}
          <Settings key={endpoint.updated_at} endpoint={endpoint} />
        </>
      )}
    </Page>
  )
}

function ClassicPage() {
  const read = useRead(['webhook'], (api) => api.GET('/v1/webhook'))
  const webhook = read.data?.webhook ?? null
  return (
    <Page endpoint={null} present={webhook} query={read} health={read.data?.health ?? null}>
      {(onSecret) => <ClassicSettings key={webhook?.updated_at ?? ''} webhook={webhook} onSecret={onSecret} />}
    </Page>
  )
}

function Page({ endpoint, present, query, health, children }: {
  readonly endpoint: EndpointId
  readonly present: Pick<Endpoint, 'url' | 'enabled'> | null
  readonly query: Parameters<typeof Loaded>[0]['query']
  readonly health: components['schemas']['WebhookHealth'] | null
  readonly children: (onSecret: OnSecret) => ReactNode
}) {
  const [secret, setSecret] = useState<string | null>(null)
  const ping = usePing(endpoint)
  const isClassic = endpoint === null
  return (
    <>
      <PageLink to={['webhooks']} size="sm">{text.back}</PageLink>
      <PageHeader
        title={isClassic ? text.webhook : text.endpoint}
        about={<>{isClassic && <Text size="sm"><StatusBadge state="classic" label={text.classic} /> {text.classicAbout}</Text>}{present !== null && <CopyField name={text.url} value={present.url} />}</>}
        actions={present === null ? undefined : <PingButton endpoint={endpoint} enabled={present.enabled} ping={ping} />}
      />
      <Loaded query={query}>
        {() => (
          <Stack gap="xl">
            {present === null && <Empty title={text.none}>{text.noneNext}</Empty>}
            {secret !== null && <SecretOnce secrets={[{ name: text.secret, value: secret }]} onStored={() => setSecret(null)} />}
            {ping.data !== undefined && <Ping id={ping.data.delivery.id} endpoint={endpoint} />}
            {health !== null && <HealthFigures health={health} />}
            <Stack gap="sm" component="section" aria-label={text.settings}>
              <Group justify="space-between">
                <Title order={2} size="h4">{text.settings}</Title>
                {present !== null && <Changes endpoint={endpoint} onSecret={setSecret} />}
              </Group>
              {children(setSecret)}
            </Stack>
            {present !== null && <Deliveries endpoint={endpoint} />}
            {isClassic && <Suspense fallback={<Lines count={3} />}><Verify /></Suspense>}
          </Stack>
        )}
      </Loaded>
    </>
  )
}

function Settings({ endpoint }: { readonly endpoint: Endpoint }) {
  const { id } = endpoint
  const save = useWrite((api, body: Wish) => api.PUT('/v1/endpoints/{id}', { params: { path: { id } }, body }), ['endpoints', 'endpoint', 'deliveries'])
  return (
    <Paper withBorder p="md">
      <EndpointForm present={endpoint} save={(wish) => save.mutate(wish, { onSuccess: () => notify(text.ofEndpoint.saved) })} isPending={save.isPending} error={save.error} />
    </Paper>
  )
}

function ClassicSettings({ webhook, onSecret }: { readonly webhook: Webhook | null; readonly onSecret: OnSecret }) {
  const save = useWrite((api, { url, types, enabled }: Wish) => api.PUT('/v1/webhook', { body: { url, events: types ?? null, enabled } }), ['webhook', 'deliveries', 'progress'])
  const saved = ({ secret }: { readonly secret?: string | null }) => {
    notify(text.ofWebhook.saved)
    if (secret != null) onSecret(secret)
  }
  return (
    <Paper withBorder p="md">
      <EndpointForm
        isWebhook present={webhook === null ? null : { ...UNFILTERED, ...webhook, types: webhook.events }}
        save={(wish) => save.mutate(wish, { onSuccess: saved })} isPending={save.isPending} error={save.error}
      />
    </Paper>
  )
}

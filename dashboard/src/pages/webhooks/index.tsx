/** The account's webhook: its calls, its settings, its log; and the endpoints besides it. */
import { Group, Paper, Stack, Title } from '@mantine/core'
import { Suspense, useState } from 'react'
import { useRead, useWrite } from '../../api/queries'
import type { components } from '../../api/schema'
import { SecretOnce } from '../../parts/Copy'
import { later } from '../../parts/later'
import { notify } from '../../parts/notify'
import { PageHeader } from '../../parts/PageHeader'
import { Empty, Lines, Loaded } from '../../parts/States'
import { text } from '../../words/webhooks'
import { Changes, PingButton } from './Changes'
import { Deliveries } from './Deliveries'
import { EndpointForm, UNFILTERED, type Wish } from './EndpointForm'
import { Endpoints } from './Endpoints'
import { HealthFigures } from './Health'
import { usePing } from './log'
import { Ping } from './Ping'

const Verify = later(() => import('./Verify'))

export default function WebhooksPage() {
  const webhook = useRead(['webhook'], (api) => api.GET('/v1/webhook'))
  const [secret, setSecret] = useState<string | null>(null)
  const ping = usePing(null)
  const present = webhook.data?.webhook ?? null
  const actions = present === null ? undefined : <PingButton endpoint={null} enabled={present.enabled} ping={ping} />
  return (
    <>
      <PageHeader title={text.title} about={text.about} actions={actions} />
      <Loaded query={webhook}>
        {({ health }) => (
          <Stack gap="xl">
            {present === null && <Empty title={text.none}>{text.noneNext}</Empty>}
            {secret !== null && <SecretOnce secrets={[{ name: text.secret, value: secret }]} onStored={() => setSecret(null)} />}
            {ping.data !== undefined && <Ping id={ping.data.delivery.id} endpoint={null} />}
            {health != null && <HealthFigures health={health} />}
            <Stack gap="sm" component="section" aria-label={text.settings}>
              <Group justify="space-between">
                <Title order={2} size="h4">{text.settings}</Title>
                {present !== null && <Changes endpoint={null} onSecret={setSecret} />}
              </Group>
              <Settings key={present?.updated_at ?? ''} webhook={present} onSecret={setSecret} />
            </Stack>
            {present !== null && <Deliveries endpoint={null} />}
            <Endpoints />
            <Suspense fallback={<Lines count={3} />}><Verify /></Suspense>
          </Stack>
        )}
      </Loaded>
    </>
  )
}

function Settings({ webhook, onSecret }: { readonly webhook: components['schemas']['Webhook'] | null; readonly onSecret: (secret: string) => void }) {
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

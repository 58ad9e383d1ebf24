/** An endpoint: its calls, its settings, its log. */
import { Group, Paper, Stack, Text, Title } from '@mantine/core'
import { useState } from 'react'
import { useRead, useWrite } from '../../api/queries'
import { CopyField, SecretOnce } from '../../parts/Copy'
import { PageLink, useParam } from '../../parts/Link'
import { notify } from '../../parts/notify'
import { PageHeader } from '../../parts/PageHeader'
import { Loaded } from '../../parts/States'
import { Countdown } from '../../parts/Time'
import { text } from '../../words/webhooks'
import { Changes, PingButton } from './Changes'
import { Deliveries } from './Deliveries'
import { EndpointForm, type Endpoint, type Wish } from './EndpointForm'
import { HealthFigures } from './Health'
import { usePing } from './log'
import { Ping } from './Ping'

export default function EndpointPage() {
  const id = useParam('id')
  const read = useRead(['endpoint', id], (api) => api.GET('/v1/endpoints/{id}', { params: { path: { id } } }))
  const [secret, setSecret] = useState<string | null>(null)
  const ping = usePing(id)
  const present = read.data?.endpoint
  const actions = present === undefined ? undefined : <PingButton endpoint={id} enabled={present.enabled} ping={ping} />
  return (
    <>
      <PageLink to={['webhooks']} size="sm">{text.back}</PageLink>
      <PageHeader title={text.endpoint} about={present && <CopyField name={text.url} value={present.url} />} actions={actions} />
      <Loaded query={read}>
        {({ endpoint, health }) => (
          <Stack gap="xl">
            {secret !== null && <SecretOnce secrets={[{ name: text.secret, value: secret }]} onStored={() => setSecret(null)} />}
            {ping.data !== undefined && <Ping id={ping.data.delivery.id} endpoint={id} />}
            <HealthFigures health={health} />
            <Stack gap="sm" component="section" aria-label={text.settings}>
              <Group justify="space-between">
                <Title order={2} size="h4">{text.settings}</Title>
                <Changes endpoint={id} onSecret={setSecret} />
              </Group>
              {endpoint.previous_secret_until !== null && <Text size="sm">{text.secretUntil} <Countdown until={endpoint.previous_secret_until} /></Text>}
              <Settings key={endpoint.updated_at} endpoint={endpoint} />
            </Stack>
            <Deliveries endpoint={id} />
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

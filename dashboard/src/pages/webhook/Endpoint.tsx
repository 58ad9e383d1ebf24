/** An endpoint: its calls, its settings, its log. */
import { Button, Group, Paper, Stack, Text, Title } from '@mantine/core'
import { IconSend } from '@tabler/icons-react'
import { useState } from 'react'
import { useRead, useWrite } from '../../api/queries'
import { Confirm } from '../../parts/Confirm'
import { CopyField, SecretOnce } from '../../parts/Copy'
import { PageLink, useGo, useParam } from '../../parts/Link'
import { notify, notifyFailure } from '../../parts/notify'
import { PageHeader } from '../../parts/PageHeader'
import { Allowed } from '../../parts/Role'
import { Loaded } from '../../parts/States'
import { Countdown } from '../../parts/Time'
import { text } from '../../words/endpoints'
import { Deliveries } from './Deliveries'
import { EndpointForm, type Endpoint, type Wish } from './EndpointForm'
import { HealthFigures } from './Health'
import { Ping } from './Ping'

export default function EndpointPage() {
  const id = useParam('id')
  const read = useRead(['endpoint', id], (api) => api.GET('/v1/endpoints/{id}', { params: { path: { id } } }))
  const [secret, setSecret] = useState<string | null>(null)
  const ping = useWrite((api) => api.POST('/v1/endpoints/{id}/ping', { params: { path: { id } } }), ['deliveries', 'endpoint'])
  const present = read.data?.endpoint
  const actions = present === undefined ? undefined : (
    <Allowed to="pingEndpoint" unless={present.enabled ? null : text.pingDisabled}>
      {(control) => <Button {...control} leftSection={<IconSend size={16} />} loading={ping.isPending} onClick={() => ping.mutate(undefined, { onError: notifyFailure })}>{text.ping}</Button>}
    </Allowed>
  )
  return (
    <>
      <PageLink to={['endpoints']} size="sm">{text.back}</PageLink>
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
                <Changes id={id} onSecret={setSecret} />
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
      <EndpointForm endpoint={endpoint} save={(wish) => save.mutate(wish, { onSuccess: () => notify(text.saved) })} isPending={save.isPending} error={save.error} />
    </Paper>
  )
}

/** A new secret and deletion, each after a question. */
function Changes({ id, onSecret }: { readonly id: string; readonly onSecret: (secret: string) => void }) {
  const [asked, setAsked] = useState<'rotate' | 'remove' | null>(null)
  const go = useGo()
  const params = { path: { id } }
  const rotate = useWrite((api) => api.POST('/v1/endpoints/{id}/rotate-secret', { params }), ['endpoint'])
  const remove = useWrite((api) => api.DELETE('/v1/endpoints/{id}', { params }), ['endpoints'])
  const close = () => setAsked(null)
  return (
    <Group gap="xs">
      <Allowed to="rotateEndpointSecret">
        {(control) => <Button {...control} variant="default" size="xs" aria-haspopup="dialog" onClick={() => setAsked('rotate')}>{text.rotate}</Button>}
      </Allowed>
      <Allowed to="deleteEndpoint">
        {(control) => <Button {...control} variant="default" size="xs" aria-haspopup="dialog" onClick={() => setAsked('remove')}>{text.remove}</Button>}
      </Allowed>
      <Confirm
        opened={asked === 'rotate'} title={text.rotate} action={text.rotate} isPending={rotate.isPending} error={rotate.error} onClose={close}
        onConfirm={() => rotate.mutate(undefined, { onSuccess: ({ secret }) => { close(); onSecret(secret) } })}
      >
        {text.rotateWhy}
      </Confirm>
      <Confirm
        opened={asked === 'remove'} title={text.removeTitle} action={text.remove} isPending={remove.isPending} error={remove.error} onClose={close}
        onConfirm={() => remove.mutate(undefined, { onSuccess: () => { notify(text.removed); go(['endpoints']) } })}
      >
        {text.removeWhy}
      </Confirm>
    </Group>
  )
}

import { Button, Group, Stack, Title } from '@mantine/core'
import { IconSend } from '@tabler/icons-react'
import { Suspense, useState } from 'react'
import { later } from '../../parts/later'
import { useRead, useWrite } from '../../api/queries'
import { Confirm } from '../../parts/Confirm'
import { SecretOnce } from '../../parts/Copy'
import { notify, notifyFailure } from '../../parts/notify'
import { PageHeader } from '../../parts/PageHeader'
import { Allowed } from '../../parts/Role'
import { Empty, Lines, Loaded } from '../../parts/States'
import { text } from '../../words/webhook'
import { Deliveries } from './Deliveries'
import { HealthFigures } from './Health'
import { Ping } from './Ping'
import { SettingsForm } from './SettingsForm'

const Verify = later(() => import('./Verify'))

export function Webhook() {
  const webhook = useRead(['webhook'], (api) => api.GET('/v1/webhook'))
  const [secret, setSecret] = useState<string | null>(null)
  const ping = useWrite((api) => api.POST('/v1/webhook/ping'), ['deliveries', 'webhook', 'progress'])
  const present = webhook.data?.webhook ?? null
  const actions = present === null ? undefined : (
    <Allowed to="pingWebhook" unless={present.enabled ? null : text.pingDisabled}>
      {(control) => (
        <Button {...control} leftSection={<IconSend size={16} />} loading={ping.isPending} onClick={() => ping.mutate(undefined, { onError: notifyFailure })}>{text.ping}</Button>
      )}
    </Allowed>
  )
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
                {present !== null && <Changes onSecret={setSecret} />}
              </Group>
              <SettingsForm key={present?.updated_at ?? ''} webhook={present} onSecret={setSecret} />
            </Stack>
            {present !== null && <Deliveries endpoint={null} />}
            <Suspense fallback={<Lines count={3} />}><Verify /></Suspense>
          </Stack>
        )}
      </Loaded>
    </>
  )
}

/** A new secret and deletion, each after a question. */
function Changes({ onSecret }: { readonly onSecret: (secret: string) => void }) {
  const [asked, setAsked] = useState<'rotate' | 'remove' | null>(null)
  const rotate = useWrite((api) => api.POST('/v1/webhook/rotate-secret'), ['webhook'])
  const remove = useWrite((api) => api.DELETE('/v1/webhook'), ['webhook', 'deliveries', 'progress'])
  const close = () => setAsked(null)
  return (
    <Group gap="xs">
      <Allowed to="rotateWebhookSecret">
        {(control) => <Button {...control} variant="default" size="xs" aria-haspopup="dialog" onClick={() => setAsked('rotate')}>{text.rotate}</Button>}
      </Allowed>
      <Allowed to="deleteWebhook">
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
        onConfirm={() => remove.mutate(undefined, { onSuccess: () => { close(); notify(text.removed) } })}
      >
        {text.removeWhy}
      </Confirm>
    </Group>
  )
}

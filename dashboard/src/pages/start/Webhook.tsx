import { Alert, Button, Group, Loader, Stack, Text, TextInput } from '@mantine/core'
import { useState } from 'react'
import { useRead, useWrite } from '../../api/queries'
import { SecretOnce } from '../../parts/Copy'
import { PageLink } from '../../parts/Link'
import { Allowed, useMay } from '../../parts/Role'
import { Failure, Lines, Loaded } from '../../parts/States'
import { number } from '../../words/format'
import { text } from '../../words/start'
import classes from './start.module.css'

const ASK_MS = 1_000

export function Webhook({ onUse }: { readonly onUse: () => void }) {
  const read = useRead(['webhook'], (api) => api.GET('/v1/webhook'))
  const [secret, setSecret] = useState<string | null>(null)
  return (
    <Stack>
      <Text size="sm">{text.webhook.why}</Text>
      <Loaded query={read} skeleton={<Lines count={1} />}>
        {({ webhook }) => webhook === null
          ? <Save onSaved={(made) => { onUse(); setSecret(made) }} />
          : (
            <>
              {secret !== null && <SecretOnce secrets={[{ name: text.webhook.secret, value: secret }]} onStored={() => setSecret(null)} />}
              <Ping url={webhook.url} isEnabled={webhook.enabled} onUse={onUse} />
            </>
          )}
      </Loaded>
    </Stack>
  )
}

function Save({ onSaved }: { readonly onSaved: (secret: string | null) => void }) {
  const [url, setUrl] = useState('')
  const mayNot = !useMay('saveWebhook')
  const save = useWrite((api) => api.PUT('/v1/webhook', { body: { url: url.trim(), events: null, enabled: true } }), ['webhook', 'progress'])
  return (
    <form onSubmit={(event) => { event.preventDefault(); save.mutate(undefined, { onSuccess: (saved) => onSaved(saved.secret ?? null) }) }}>
      <Stack>
        <Group align="flex-end" gap="xs">
          <TextInput
            flex="1 1 220px" maw={480} type="url" label={text.webhook.url} placeholder={text.webhook.placeholder} required readOnly={mayNot} maxLength={2048}
            autoComplete="off" spellCheck={false} value={url} onChange={(event) => setUrl(event.currentTarget.value)}
          />
          <Allowed to="saveWebhook">{(control) => <Button {...control} type="submit" loading={save.isPending}>{text.webhook.save}</Button>}</Allowed>
        </Group>
        {save.error !== null && <Failure error={save.error} title={text.webhook.save} />}
      </Stack>
    </form>
  )
}

function Ping({ url, isEnabled, onUse }: { readonly url: string; readonly isEnabled: boolean; readonly onUse: () => void }) {
  const ping = useWrite((api) => api.POST('/v1/webhook/ping'), ['deliveries', 'webhook', 'progress'])
  return (
    <>
      <Text size="sm" className={classes.break}>{text.webhook.pingWhy(url)}</Text>
      <Group>
        <Allowed to="pingWebhook" unless={isEnabled ? null : text.webhook.disabled}>
          {(control) => <Button {...control} loading={ping.isPending} onClick={() => { onUse(); ping.mutate() }}>{text.webhook.ping}</Button>}
        </Allowed>
        <PageLink to={['webhooks']} fz="sm">{text.webhook.open}</PageLink>
      </Group>
      {ping.error !== null && <Failure error={ping.error} title={text.webhook.failed} />}
      {ping.data !== undefined && <Answer id={ping.data.delivery.id} />}
    </>
  )
}

/** The answer of the user's server, as soon as it arrives. */
function Answer({ id }: { readonly id: string }) {
  const read = useRead(['deliveries', 'single', id], (api) => api.GET('/v1/webhook/deliveries/{id}', { params: { path: { id } } }), {
    every: (data) => (data === undefined || data.delivery.status === 'pending' ? ASK_MS : false),
  })
  const delivery = read.data?.delivery
  if (read.error !== null && delivery === undefined) return <Failure error={read.error} retry={() => void read.refetch()} />
  // A call that failed is repeated: its first answer is shown in the meantime.
  if (delivery === undefined || (delivery.status === 'pending' && delivery.attempt === 0)) {
    return <Alert w="100%" color="indigo" role="status"><Group gap="xs"><Loader size="xs" aria-hidden="true" /><Text size="sm">{text.webhook.pinging}</Text></Group></Alert>
  }
  const isGood = delivery.status === 'succeeded'
  return (
    <Alert w="100%" color={isGood ? 'teal' : 'red'} role="status" data-ping={delivery.status}>
      <Stack gap="xs" align="flex-start">
        {delivery.http_status !== null && <Text size="sm" fw={600}>{text.webhook.answered(number(delivery.http_status))}</Text>}
        {!isGood && <Text size="sm" className={classes.break}>{delivery.error ?? text.webhook.unanswered}</Text>}
        <PageLink to={['webhooks', 'account', id]} fz="sm">{text.webhook.delivery}</PageLink>
      </Stack>
    </Alert>
  )
}

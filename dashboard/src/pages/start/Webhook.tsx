import { Alert, Button, Group, Loader, Stack, Text, TextInput } from '@mantine/core'
import { useState } from 'react'
import { useRead, useWrite } from '../../api/queries'
import type { components } from '../../api/schema'
import { SecretOnce } from '../../parts/Copy'
import { PageLink } from '../../parts/Link'
import { Allowed, useMay } from '../../parts/Role'
import { Failure, Lines, Loaded } from '../../parts/States'
import { number } from '../../words/format'
import { text } from '../../words/start'
import classes from './start.module.css'

type Endpoint = components['schemas']['Endpoint']

const ASK_MS = 1_000
const ALL_EVENTS = { types: null, sender_domains: null, tags: null, mode: null, headers: null } as const

export function Webhook({ isSaved, onUse }: {
  /** The account has an endpoint, or the classic webhook. */
  readonly isSaved: boolean
  readonly onUse: () => void
}) {
  const read = useRead(['endpoints'], (api) => api.GET('/v1/endpoints'))
  const [secret, setSecret] = useState<string | null>(null)
  return (
    <Stack>
      <Text size="sm">{text.webhook.why}</Text>
      <Loaded query={read} skeleton={<Lines count={1} />}>
        {({ endpoints: [endpoint] }) => {
          if (endpoint === undefined) return isSaved ? <Open /> : <Create onCreated={(made) => { onUse(); setSecret(made) }} />
          return (
            <>
              {secret !== null && <SecretOnce secrets={[{ name: text.webhook.secret, value: secret }]} onStored={() => setSecret(null)} />}
              <Ping endpoint={endpoint} onUse={onUse} />
            </>
          )
        }}
      </Loaded>
    </Stack>
  )
}

const Open = () => <PageLink to={['webhooks']} fz="sm">{text.webhook.open}</PageLink>

function Create({ onCreated }: { readonly onCreated: (secret: string) => void }) {
  const [url, setUrl] = useState('')
  const mayNot = !useMay('createEndpoint')
  const create = useWrite((api) => api.POST('/v1/endpoints', { body: { ...ALL_EVENTS, url: url.trim(), enabled: true } }), ['endpoints', 'progress'])
  return (
    <form onSubmit={(event) => { event.preventDefault(); create.mutate(undefined, { onSuccess: (made) => onCreated(made.secret) }) }}>
      <Stack>
        <Group align="flex-end" gap="xs">
          <TextInput
            flex="1 1 220px" maw={480} type="url" label={text.webhook.url} placeholder={text.webhook.placeholder} required readOnly={mayNot} maxLength={2048}
            autoComplete="off" spellCheck={false} value={url} onChange={(event) => setUrl(event.currentTarget.value)}
          />
          <Allowed to="createEndpoint">{(control) => <Button {...control} type="submit" loading={create.isPending}>{text.webhook.create}</Button>}</Allowed>
        </Group>
        {create.error !== null && <Failure error={create.error} title={text.webhook.create} />}
      </Stack>
    </form>
  )
}

function Ping({ endpoint: { id, url, enabled }, onUse }: { readonly endpoint: Endpoint; readonly onUse: () => void }) {
  const ping = useWrite((api) => api.POST('/v1/endpoints/{id}/ping', { params: { path: { id } } }), ['deliveries', 'endpoints', 'progress'])
  return (
    <>
      <Text size="sm" className={classes.break}>{text.webhook.pingWhy(url)}</Text>
      <Group>
        <Allowed to="pingEndpoint" unless={enabled ? null : text.webhook.disabled}>
          {(control) => <Button {...control} loading={ping.isPending} onClick={() => { onUse(); ping.mutate() }}>{text.webhook.ping}</Button>}
        </Allowed>
        <Open />
      </Group>
      {ping.error !== null && <Failure error={ping.error} title={text.webhook.failed} />}
      {ping.data !== undefined && <Answer endpoint={id} id={ping.data.delivery.id} />}
    </>
  )
}

/** The answer of the user's server, as soon as it arrives. */
function Answer({ endpoint, id }: { readonly endpoint: string; readonly id: string }) {
  const read = useRead(['deliveries', 'single', id], (api) => api.GET('/v1/endpoints/deliveries/{id}', { params: { path: { id } } }), {
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
        <PageLink to={['webhooks', endpoint, id]} fz="sm">{text.webhook.delivery}</PageLink>
      </Stack>
    </Alert>
  )
}

import { Alert, Button, Group, Loader, Stack, Text } from '@mantine/core'
import { useRead, useWrite } from '../../api/queries'
import { PageLink, useGo } from '../../parts/Link'
import { Allowed } from '../../parts/Role'
import { Failure, Lines, Loaded } from '../../parts/States'
import { number } from '../../words/format'
import { text } from '../../words/start'
import classes from './start.module.css'

const ASK_MS = 1_000

export function Webhook({ onPing }: { readonly onPing: () => void }) {
  const go = useGo()
  const read = useRead(['webhook'], (api) => api.GET('/v1/webhook'))
  const ping = useWrite((api) => api.POST('/v1/webhook/ping'), ['deliveries', 'webhook', 'progress'])
  return (
    <Stack align="flex-start">
      <Text size="sm">{text.webhook.why}</Text>
      <Loaded query={read} skeleton={<Lines count={1} />}>
        {({ webhook }) => webhook === null ? (
          <Allowed to="saveWebhook">{(control) => <Button {...control} onClick={() => go(['webhook'])}>{text.webhook.open}</Button>}</Allowed>
        ) : (
          <>
            <Text size="sm" className={classes.break}>{text.webhook.pingWhy(webhook.url)}</Text>
            <Allowed to="pingWebhook">
              {(control) => <Button {...control} loading={ping.isPending} onClick={() => { onPing(); ping.mutate() }}>{text.webhook.ping}</Button>}
            </Allowed>
          </>
        )}
      </Loaded>
      {ping.error !== null && <Failure error={ping.error} title={text.webhook.failed} />}
      {ping.data !== undefined && <Answer id={ping.data.delivery.id} />}
    </Stack>
  )
}

/** The answer of the user's server, as soon as it is there. */
function Answer({ id }: { readonly id: string }) {
  const read = useRead(['deliveries', 'single', id], (api) => api.GET('/v1/webhook/deliveries/{id}', { params: { path: { id } } }), {
    every: (data) => (data === undefined || data.delivery.status === 'pending' ? ASK_MS : false),
  })
  const delivery = read.data?.delivery
  if (read.error !== null && delivery === undefined) return <Failure error={read.error} retry={() => void read.refetch()} />
  // A call that failed is repeated: its first answer is shown meanwhile.
  if (delivery === undefined || (delivery.status === 'pending' && delivery.attempt === 0)) {
    return <Alert w="100%" color="indigo" role="status"><Group gap="xs"><Loader size="xs" aria-hidden="true" /><Text size="sm">{text.webhook.pinging}</Text></Group></Alert>
  }
  const isGood = delivery.status === 'succeeded'
  return (
    <Alert w="100%" color={isGood ? 'teal' : 'red'} role="status" data-ping={delivery.status}>
      <Stack gap="xs" align="flex-start">
        {delivery.http_status !== null && <Text size="sm" fw={600}>{text.webhook.answered(number(delivery.http_status))}</Text>}
        {!isGood && <Text size="sm" className={classes.break}>{delivery.error ?? text.webhook.unanswered}</Text>}
        <PageLink to={['webhook', id]} fz="sm">{text.webhook.delivery}</PageLink>
      </Stack>
    </Alert>
  )
}

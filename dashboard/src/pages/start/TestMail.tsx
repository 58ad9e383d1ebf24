import { Alert, Button, Group, Loader, Stack, Text } from '@mantine/core'
import { useMe, useRead, useWrite } from '../../api/queries'
import { useDelivered } from '../../parts/captures'
import { PageLink } from '../../parts/Link'
import { Allowed } from '../../parts/Role'
import { Failure } from '../../parts/States'
import { StatusBadge, toneColor, toneOf } from '../../parts/Status'
import { text } from '../../words/start'
import classes from './start.module.css'

const ASK_MS = 1_000

export function TestMail({ onSent }: { readonly onSent: () => void }) {
  const me = useMe()
  const captures = useDelivered() === 'captured'
  const domains = useRead(['domains', 'first'], (api) => api.GET('/v1/domains', { params: { query: { limit: 100 } } }))
  const lacksDomain = domains.data?.domains.every(({ verified }) => !verified) ?? false
  const send = useWrite(
    (api) => api.POST('/v1/test-email', { body: {} as never }),
    ['messages', 'account', 'ledger', 'progress'],
  )
  return (
    <Stack align="flex-start">
      <Text size="sm" className={classes.break}>{captures ? text.testMail.whyCaptured : text.testMail.why(me.user.email)}</Text>
      {lacksDomain && <Text size="sm" fw={600}>{text.testMail.noDomain}</Text>}
      <Allowed to="sendTestEmail" unless={lacksDomain ? text.testMail.noDomain : null}>
        {(control) => (
          <Button {...control} variant={send.data === undefined ? 'filled' : 'default'} loading={send.isPending || domains.isPending} onClick={() => { onSent(); send.mutate() }}>
            {send.data === undefined ? text.testMail.send : text.testMail.again}
          </Button>
        )}
      </Allowed>
      {send.error !== null && <Failure error={send.error} title={text.testMail.failed} />}
      {send.data !== undefined && <Arrival id={send.data.id} />}
    </Stack>
  )
}

/** The timeline of the message, live. */
function Arrival({ id }: { readonly id: string }) {
  const read = useRead(['message', id], (api) => api.GET('/v1/messages/{id}', { params: { path: { id } } }), {
    every: (data) => (data === undefined || data.message.status === 'queued' ? ASK_MS : false),
  })
  const message = read.data?.message
  const captures = useDelivered() === 'captured'
  if (read.error !== null && message === undefined) return <Failure error={read.error} retry={() => void read.refetch()} />
  const recipient = message?.recipients[0]
  if (recipient === undefined || recipient.status === 'queued') {
    return <Alert w="100%" color="indigo" role="status" data-arrival="waiting"><Group gap="xs"><Loader size="xs" aria-hidden="true" /><Text size="sm">{text.testMail.waiting}</Text></Group></Alert>
  }
  const { status, explanation } = recipient
  const headline = captures && status === 'delivered' ? text.testMail.captured : explanation.headline
  return (
    <Alert w="100%" color={toneColor(toneOf(status))} role="status" data-arrival={status}>
      <Stack gap="xs" align="flex-start">
        <Group gap="xs"><StatusBadge state={status} /><Text size="sm" fw={600}>{headline}</Text></Group>
        {status !== 'delivered' && <Text size="sm">{explanation.what_to_do}</Text>}
        <PageLink to={['messages', id]} fz="sm">{text.testMail.timeline}</PageLink>
      </Stack>
    </Alert>
  )
}

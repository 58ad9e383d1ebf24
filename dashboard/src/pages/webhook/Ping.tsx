/** The answer to a test, as soon as it is there. */
import { Alert, Group, Loader, Stack, Text } from '@mantine/core'
import { useRead } from '../../api/queries'
import { CodeBlock } from '../../parts/Copy'
import { Failure } from '../../parts/States'
import { PageLink } from '../../parts/Link'
import classes from '../../parts/parts.module.css'
import { text } from '../../words/webhook'
import { answerOf } from './answer'

const ASK_MS = 1_000

export function Ping({ id }: { readonly id: string }) {
  const read = useRead(['deliveries', 'single', id], (api) => api.GET('/v1/webhook/deliveries/{id}', { params: { path: { id } } }), { every: ASK_MS })
  const delivery = read.data?.delivery
  if (read.error !== null && delivery === undefined) return <Failure error={read.error} title={text.ping} />
  if (delivery === undefined || delivery.status === 'pending') {
    return <Alert color="indigo" role="status"><Group gap="xs"><Loader size="xs" />{text.pinging}</Group></Alert>
  }
  const isGood = delivery.status === 'succeeded'
  return (
    <Alert color={isGood ? 'teal' : 'red'} title={isGood ? text.pingDone : text.pingFailed} role="status" data-ping={delivery.status}>
      <Stack gap="xs">
        <Text size="sm">{answerOf(delivery)}</Text>
        {delivery.error !== null && <Text size="sm" className={classes.break}>{delivery.error}</Text>}
        {delivery.response_body != null && delivery.response_body !== '' && <CodeBlock code={delivery.response_body} name={text.response} />}
        <PageLink to={['webhook', id]} size="sm">{text.delivery}</PageLink>
      </Stack>
    </Alert>
  )
}

/** The answer to a test, as soon as it arrives. */
import { Alert, Group, Loader, Stack, Text } from '@mantine/core'
import { CodeBlock } from '../../parts/Copy'
import { Failure } from '../../parts/States'
import { PageLink } from '../../parts/Link'
import classes from '../../parts/parts.module.css'
import { text } from '../../words/webhooks'
import { answerOf } from './answer'
import { placeOf, useDelivery, type EndpointId } from './log'

const ASK_MS = 1_000

export function Ping({ id, endpoint }: { readonly id: string; readonly endpoint: EndpointId }) {
  const read = useDelivery(endpoint, id, ASK_MS)
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
        <PageLink to={placeOf(endpoint, id)} size="sm">{text.delivery}</PageLink>
      </Stack>
    </Alert>
  )
}

/** What is done with the webhook or an endpoint as it is: a test, a new secret, deletion. */
import { Button, Group } from '@mantine/core'
import { IconSend } from '@tabler/icons-react'
import { useState } from 'react'
import { Confirm } from '../../parts/Confirm'
import { useGo } from '../../parts/Link'
import { notify, notifyFailure } from '../../parts/notify'
import { Allowed } from '../../parts/Role'
import { text } from '../../words/webhooks'
import { logOf, useRemove, useRotate, type EndpointId, type usePing } from './log'

const wordsOf = (endpoint: EndpointId) => (endpoint === null ? text.ofWebhook : text.ofEndpoint)

export function PingButton({ endpoint, enabled, ping }: { readonly endpoint: EndpointId; readonly enabled: boolean; readonly ping: ReturnType<typeof usePing> }) {
  return (
    <Allowed to={logOf(endpoint).ping.needs} unless={enabled ? null : wordsOf(endpoint).pingDisabled}>
      {(control) => <Button {...control} leftSection={<IconSend size={16} />} loading={ping.isPending} onClick={() => ping.mutate(undefined, { onError: notifyFailure })}>{text.ping}</Button>}
    </Allowed>
  )
}

/** A new secret and deletion, each after a confirmation. */
export function Changes({ endpoint, onSecret }: { readonly endpoint: EndpointId; readonly onSecret: (secret: string) => void }) {
  const [asked, setAsked] = useState<'rotate' | 'remove' | null>(null)
  const go = useGo()
  const rotate = useRotate(endpoint)
  const remove = useRemove(endpoint)
  const { rotate: { needs: toRotate }, remove: { needs: toRemove } } = logOf(endpoint)
  const own = wordsOf(endpoint)
  const close = () => setAsked(null)
  return (
    <Group gap="xs">
      <Allowed to={toRotate}>
        {(control) => <Button {...control} variant="default" size="xs" aria-haspopup="dialog" onClick={() => setAsked('rotate')}>{text.rotate}</Button>}
      </Allowed>
      <Allowed to={toRemove}>
        {(control) => <Button {...control} variant="default" size="xs" aria-haspopup="dialog" onClick={() => setAsked('remove')}>{text.remove}</Button>}
      </Allowed>
      <Confirm
        opened={asked === 'rotate'} title={text.rotate} action={text.rotate} isPending={rotate.isPending} error={rotate.error} onClose={close}
        onConfirm={() => rotate.mutate(undefined, { onSuccess: ({ secret }) => { close(); onSecret(secret) } })}
      >
        {own.rotateWhy}
      </Confirm>
      <Confirm
        opened={asked === 'remove'} title={own.removeTitle} action={text.remove} isPending={remove.isPending} error={remove.error} onClose={close}
        onConfirm={() => remove.mutate(undefined, { onSuccess: () => { close(); notify(own.removed); go(['webhooks']) } })}
      >
        {own.removeWhy}
      </Confirm>
    </Group>
  )
}

/** Cancel a message that no worker has tried, or send a scheduled one at another time. */
import { Button, Group, Modal, Stack, Text, TextInput } from '@mantine/core'
import { useState } from 'react'
import { useWrite } from '../../api/queries'
import { Confirm } from '../../parts/Confirm'
import { notify } from '../../parts/notify'
import { Allowed } from '../../parts/Role'
import { Failure } from '../../parts/States'
import { fromLocalInput, localInput } from '../../rules/message-list'
import { text } from '../../words/message'
import { text as shared } from '../../words/parts'
import type { Message } from './types'

const CHANGED = ['message', 'messages', 'account', 'ledger', 'usage'] as const

export function Changes({ message: { id, status, state, send_at: sendAt, recipients } }: { readonly message: Message }) {
  const [asked, setAsked] = useState<'cancel' | 'move' | null>(null)
  const cancel = useWrite((api) => api.POST('/emails/{id}/cancel', { params: { path: { id } } }), CHANGED)
  const close = () => setAsked(null)
  if (status !== 'queued' || recipients.some(({ attempts }) => attempts.length > 0)) return null
  return (
    <>
      {state === 'scheduled' && (
        <Allowed to="cancelMessages">
          {(control) => <Button {...control} variant="default" aria-haspopup="dialog" onClick={() => setAsked('move')}>{text.move}</Button>}
        </Allowed>
      )}
      <Allowed to="cancelMessages">
        {(control) => <Button {...control} variant="default" aria-haspopup="dialog" onClick={() => setAsked('cancel')}>{text.cancel}</Button>}
      </Allowed>
      <Confirm
        opened={asked === 'cancel'} title={text.cancel} action={text.cancel} isPending={cancel.isPending} error={cancel.error} onClose={close}
        onConfirm={() => cancel.mutate(undefined, { onSuccess: () => { notify(text.cancelDone); close() } })}
      >
        {text.cancelWhy}
      </Confirm>
      {asked === 'move' && <Move id={id} sendAt={sendAt ?? ''} onClose={close} />}
    </>
  )
}

function Move({ id, sendAt, onClose }: { readonly id: string; readonly sendAt: string; readonly onClose: () => void }) {
  const [at, setAt] = useState(localInput(sendAt))
  const chosen = fromLocalInput(at)
  const move = useWrite((api, time: string) => api.PATCH('/emails/{id}', { params: { path: { id } }, body: { send_at: time } }), CHANGED)
  return (
    <Modal opened onClose={onClose} title={text.move} closeButtonProps={{ 'aria-label': shared.close }}>
      <form
        onSubmit={(event) => {
          event.preventDefault()
          if (chosen !== undefined) move.mutate(chosen, { onSuccess: () => { notify(text.moved); onClose() } })
        }}
      >
        <Stack>
          <Text size="sm">{text.moveWhy}</Text>
          <TextInput type="datetime-local" label={text.detail.sendAt} required value={at} onChange={(event) => setAt(event.currentTarget.value)} data-autofocus />
          {move.error !== null && <Failure error={move.error} title={text.move} />}
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>{shared.close}</Button>
            <Button type="submit" loading={move.isPending}>{text.move}</Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  )
}

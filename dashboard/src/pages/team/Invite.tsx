import { Button, Group, Modal, Radio, Stack, TextInput } from '@mantine/core'
import { useState } from 'react'
import { useWrite } from '../../api/queries'
import { notify } from '../../parts/notify'
import { Failure } from '../../parts/States'
import { text } from '../../words/team'
import { ROLES } from './roles'

type Role = (typeof ROLES)[number]

export function Invite({ opened, onClose }: { readonly opened: boolean; readonly onClose: () => void }) {
  const [email, setEmail] = useState('')
  const [role, setRole] = useState<Role>('member')
  const invite = useWrite((api, body: { readonly email: string; readonly role: Role }) => api.POST('/v1/invitations', { body }), ['invitations'])
  const close = () => {
    invite.reset()
    setEmail('')
    onClose()
  }
  const send = () => {
    const address = email.trim()
    invite.mutate({ email: address, role }, {
      onSuccess: () => {
        notify(text.invited(address))
        close()
      },
    })
  }
  return (
    <Modal opened={opened} onClose={close} title={text.inviteTitle} closeButtonProps={{ 'aria-label': text.close }}>
      <form
        onSubmit={(event) => {
          event.preventDefault()
          send()
        }}
      >
        <Stack>
          <TextInput
            type="email" label={text.email} description={text.inviteAbout} required data-autofocus autoComplete="off"
            value={email} onChange={(event) => setEmail(event.currentTarget.value)}
          />
          <Radio.Group label={text.role} value={role} onChange={(chosen) => setRole(chosen as Role)}>
            <Stack gap="xs" mt="xs">
              {ROLES.map((name) => <Radio key={name} value={name} label={text.roles[name]} />)}
            </Stack>
          </Radio.Group>
          {invite.error !== null && <Failure error={invite.error} />}
          <Group justify="flex-end">
            <Button variant="default" onClick={close}>{text.cancel}</Button>
            <Button type="submit" loading={invite.isPending}>{text.send}</Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  )
}

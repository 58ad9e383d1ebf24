/** Sign-in over the page, whose fields stay as they are. */
import { Button, Modal, Stack, Text } from '@mantine/core'
import { leave, type Me } from '../api/session'
import { SignInForm } from '../pages/login/SignInForm'
import { text } from '../words/shell'

export default function SessionDialog({ me, opened }: { readonly me: Me; readonly opened: boolean }) {
  return (
    <Modal opened={opened} onClose={leave} title={text.ended} withCloseButton={false} closeOnClickOutside={false} closeOnEscape={false}>
      <Stack>
        <Text size="sm">{text.endedWhy}</Text>
        <SignInForm email={me.user.email} />
        <Button variant="subtle" size="xs" onClick={leave}>{text.signOut}</Button>
      </Stack>
    </Modal>
  )
}

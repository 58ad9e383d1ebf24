/** A question before a change that can't be undone. */
import { Button, Group, Modal, Stack, Text, TextInput } from '@mantine/core'
import { useState, type ReactNode } from 'react'
import { text } from '../words/parts'
import { Failure } from './States'

export function Confirm({ opened, title, children, action, typed, isPending, error, onConfirm, onClose }: {
  readonly opened: boolean
  readonly title: string
  /** The consequences. */
  readonly children: ReactNode
  /** The button: a verb. */
  readonly action: string
  /** The user has to type this first. */
  readonly typed?: string
  readonly isPending?: boolean
  readonly error?: unknown
  readonly onConfirm: () => void
  readonly onClose: () => void
}) {
  const [given, setGiven] = useState('')
  const close = () => {
    setGiven('')
    onClose()
  }
  return (
    <Modal opened={opened} onClose={close} title={title} closeButtonProps={{ 'aria-label': text.close }}>
      <form
        onSubmit={(event) => {
          event.preventDefault()
          onConfirm()
          setGiven('')
        }}
      >
        <Stack>
          <Text component="div" size="sm">{children}</Text>
          {typed !== undefined && (
            <TextInput label={text.typeToConfirm(typed)} value={given} onChange={(event) => setGiven(event.currentTarget.value)} data-autofocus autoComplete="off" />
          )}
          {error !== null && error !== undefined && <Failure error={error} />}
          <Group justify="flex-end">
            <Button variant="default" onClick={close}>{text.cancel}</Button>
            <Button color="red" type="submit" loading={isPending ?? false} disabled={typed !== undefined && given !== typed}>{action}</Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  )
}

import { Button, Group, Modal, Stack, TextInput } from '@mantine/core'
import { useState } from 'react'
import { useWrite } from '../../api/queries'
import { useGo } from '../../parts/Link'
import { Failure } from '../../parts/States'
import { text } from '../../words/domains'
import { text as shared } from '../../words/parts'

export function AddDomain({ opened, onClose }: { readonly opened: boolean; readonly onClose: () => void }) {
  const [name, setName] = useState('')
  const go = useGo()
  const add = useWrite((api, given: string) => api.POST('/v1/domains', { body: { name: given } }), ['domains', 'progress'])
  return (
    <Modal opened={opened} onClose={onClose} title={text.add} closeButtonProps={{ 'aria-label': shared.close }}>
      <form
        onSubmit={(event) => {
          event.preventDefault()
          add.mutate(name.trim(), { onSuccess: ({ domain }) => go(['domains', domain.name]) })
        }}
      >
        <Stack>
          <TextInput label={text.name} description={text.nameHelp} placeholder={text.namePlaceholder} required value={name} onChange={(event) => setName(event.currentTarget.value)} data-autofocus autoComplete="off" autoCapitalize="none" spellCheck={false} maxLength={253} />
          {add.error !== null && <Failure error={add.error} title={text.add} />}
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>{shared.cancel}</Button>
            <Button type="submit" loading={add.isPending}>{text.add}</Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  )
}

/** Rename and delete. */
import { Button, Group, Modal, Stack, Text, TextInput } from '@mantine/core'
import { useState } from 'react'
import { useWrite } from '../../api/queries'
import { Confirm } from '../../parts/Confirm'
import { useGo } from '../../parts/Link'
import { notify } from '../../parts/notify'
import { Allowed } from '../../parts/Role'
import { Failure } from '../../parts/States'
import { text as shared } from '../../words/parts'
import { text } from '../../words/templates'

export function TemplateActions({ alias, name }: { readonly alias: string; readonly name: string }) {
  const [asked, setAsked] = useState<'rename' | 'remove' | null>(null)
  const remove = useWrite((api) => api.DELETE('/v1/templates/{alias}', { params: { path: { alias } } }), ['templates'])
  const go = useGo()
  const close = () => setAsked(null)
  return (
    <>
      <Allowed to="renameTemplate">
        {(control) => <Button {...control} variant="default" aria-haspopup="dialog" onClick={() => setAsked('rename')}>{text.rename}</Button>}
      </Allowed>
      <Allowed to="deleteTemplate">
        {(control) => <Button {...control} variant="default" aria-haspopup="dialog" onClick={() => setAsked('remove')}>{text.remove}</Button>}
      </Allowed>
      {asked === 'rename' && <Rename alias={alias} name={name} onClose={close} />}
      <Confirm
        opened={asked === 'remove'} title={text.removeTitle(alias)} action={text.remove} typed={alias} isPending={remove.isPending} error={remove.error} onClose={close}
        onConfirm={() => remove.mutate(undefined, { onSuccess: () => { notify(text.deleted(alias)); go(['templates']) } })}
      >
        {text.removeWhy}
      </Confirm>
    </>
  )
}

function Rename({ alias, name, onClose }: { readonly alias: string; readonly name: string; readonly onClose: () => void }) {
  const [newAlias, setAlias] = useState(alias)
  const [newName, setName] = useState(name)
  const go = useGo()
  const rename = useWrite(
    (api) => api.PUT('/v1/templates/{alias}', { params: { path: { alias } }, body: { alias: newAlias.trim(), name: newName.trim() } }), ['templates', 'template'],
  )
  return (
    <Modal opened onClose={onClose} title={text.rename} closeButtonProps={{ 'aria-label': shared.close }}>
      <form
        onSubmit={(event) => {
          event.preventDefault()
          rename.mutate(undefined, { onSuccess: ({ template }) => { notify(text.renamed); onClose(); go(['templates', template.alias]) } })
        }}
      >
        <Stack>
          <TextInput label={text.name} required maxLength={200} value={newName} onChange={(event) => setName(event.currentTarget.value)} data-autofocus autoComplete="off" />
          <TextInput label={text.alias} description={text.aliasHelp} required maxLength={64} value={newAlias} onChange={(event) => setAlias(event.currentTarget.value)} autoComplete="off" autoCapitalize="none" spellCheck={false} />
          {newAlias !== alias && <Text size="sm">{text.renameWhy}</Text>}
          {rename.error !== null && <Failure error={rename.error} title={text.rename} />}
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>{shared.cancel}</Button>
            <Button type="submit" loading={rename.isPending}>{text.rename}</Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  )
}

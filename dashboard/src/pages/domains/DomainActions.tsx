/** New keys and removal, each after a confirmation. */
import { Button } from '@mantine/core'
import { useDisclosure } from '@mantine/hooks'
import { IconKey, IconTrash } from '@tabler/icons-react'
import { useWrite } from '../../api/queries'
import { Confirm } from '../../parts/Confirm'
import { useGo } from '../../parts/Link'
import { notify } from '../../parts/notify'
import { Allowed } from '../../parts/Role'
import { text } from '../../words/domains'

export function DomainActions({ name, isRotating }: { readonly name: string; readonly isRotating: boolean }) {
  const path = { params: { path: { name } } }
  const rotate = useWrite((api) => api.POST('/v1/domains/{name}/rotate', path), ['domain', 'domains'])
  const remove = useWrite((api) => api.DELETE('/v1/domains/{name}', path), ['domains', 'progress'])
  const [asksRotate, rotating] = useDisclosure()
  const [asksRemove, removing] = useDisclosure()
  const go = useGo()
  return (
    <>
      <Allowed to="rotateDomainKeys" unless={isRotating ? text.alreadyRotating : null}>
        {(control) => <Button {...control} variant="default" leftSection={<IconKey size={16} />} aria-haspopup="dialog" onClick={rotating.open}>{text.rotate}</Button>}
      </Allowed>
      <Allowed to="removeDomain">
        {(control) => <Button {...control} variant="default" leftSection={<IconTrash size={16} />} aria-haspopup="dialog" onClick={removing.open}>{text.remove}</Button>}
      </Allowed>
      <Confirm
        opened={asksRotate} title={text.rotateTitle} action={text.rotateAction} isPending={rotate.isPending} error={rotate.error} onClose={rotating.close}
        onConfirm={() => rotate.mutate(undefined, { onSuccess: () => { rotating.close(); notify(text.rotated) } })}
      >
        {text.rotateWhy}
      </Confirm>
      <Confirm
        opened={asksRemove} title={text.removeTitle(name)} action={text.removeAction} typed={name} isPending={remove.isPending} error={remove.error} onClose={removing.close}
        onConfirm={() => remove.mutate(undefined, { onSuccess: () => { notify(text.removed(name)); go(['domains']) } })}
      >
        {text.removeWhy}
      </Confirm>
    </>
  )
}

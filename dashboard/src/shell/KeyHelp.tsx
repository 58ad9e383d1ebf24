/** `?` shows the keys that do something. */
import { Kbd, Modal, Table } from '@mantine/core'
import { useDisclosure, useHotkeys } from '@mantine/hooks'
import { text } from '../words/key-help'
import { text as shared } from '../words/parts'

export default function KeyHelp() {
  const [isOpen, { open, close }] = useDisclosure()
  // Some keyboards have it without Shift.
  useHotkeys([['shift+?', open], ['?', open]])
  return (
    <Modal opened={isOpen} onClose={close} title={text.title} closeButtonProps={{ 'aria-label': shared.close }}>
      <Table>
        <Table.Tbody>
          {text.keys.map(([key, what]) => <Table.Tr key={key}><Table.Th scope="row" w={110}><Kbd>{key}</Kbd></Table.Th><Table.Td>{what}</Table.Td></Table.Tr>)}
        </Table.Tbody>
      </Table>
    </Modal>
  )
}

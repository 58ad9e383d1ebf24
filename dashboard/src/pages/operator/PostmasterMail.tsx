/** Mail to postmaster@ and abuse@. Its content is shown as text, never as HTML. */
import { Anchor, Button, Code, Group, Modal, Stack, Table, Text } from '@mantine/core'
import { useState } from 'react'
import { useRead, useWrite } from '../../api/queries'
import type { components } from '../../api/schema'
import { Confirm } from '../../parts/Confirm'
import { Foreign } from '../../parts/Foreign'
import { notify } from '../../parts/notify'
import { PageHeader } from '../../parts/PageHeader'
import classes from '../../parts/parts.module.css'
import { Allowed } from '../../parts/Role'
import { Empty, Loaded } from '../../parts/States'
import { Ago } from '../../parts/Time'
import { WideTable } from '../../parts/WideTable'
import { bytes } from '../../words/format'
import { postmasterMail as text } from '../../words/operator'
import { text as parts } from '../../words/parts'

type Message = components['schemas']['PostmasterMessage']

const subjectOf = ({ subject }: Message): string => (subject === '' ? text.noSubject : subject)
const senderOf = ({ sender }: Message): string => (sender === '' ? text.report : sender)

export default function PostmasterMailPage() {
  const read = useRead(['operator', 'postmaster-mail'], (api) => api.GET('/v1/operator/postmaster-mail'))
  const [shown, setShown] = useState<Message | null>(null)
  const names = [text.subject, text.from, text.to, text.size, text.received]
  return (
    <>
      <PageHeader title={text.title} about={text.about} />
      <Loaded query={read} isEmpty={({ messages }) => messages.length === 0} empty={<Empty title={text.none}>{text.noneNext}</Empty>}>
        {({ messages }) => (
          <WideTable label={text.title} minWidth={760}>
            <Table.Thead><Table.Tr>{names.map((name) => <Table.Th key={name}>{name}</Table.Th>)}</Table.Tr></Table.Thead>
            <Table.Tbody>
              {messages.map((message) => (
                <Table.Tr key={message.id}>
                  <Table.Td className={classes.rest ?? ''}><Anchor component="button" type="button" fz="sm" ta="left" aria-haspopup="dialog" onClick={() => setShown(message)}><Foreign text={subjectOf(message)} /></Anchor></Table.Td>
                  <Table.Td><Foreign text={senderOf(message)} /></Table.Td>
                  <Table.Td><Foreign text={message.recipient} /></Table.Td>
                  <Table.Td>{bytes(message.bytes)}</Table.Td>
                  <Table.Td><Ago at={message.at} /></Table.Td>
                </Table.Tr>
              ))}
            </Table.Tbody>
          </WideTable>
        )}
      </Loaded>
      {shown !== null && <Shown message={shown} onClose={() => setShown(null)} />}
    </>
  )
}

function Shown({ message, onClose }: { readonly message: Message; readonly onClose: () => void }) {
  const [isAsked, setAsked] = useState(false)
  const read = useRead(['operator', 'postmaster-mail', message.id], (api) => api.GET('/v1/operator/postmaster-mail/{id}', { params: { path: { id: message.id } } }), { every: false })
  const remove = useWrite((api) => api.DELETE('/v1/operator/postmaster-mail/{id}', { params: { path: { id: message.id } } }), ['operator'])
  return (
    <Modal opened onClose={onClose} size="xl" title={<Foreign text={subjectOf(message)} />} closeButtonProps={{ 'aria-label': parts.close }}>
      <Stack>
        <Text size="sm" className={classes.break}><Foreign text={senderOf(message)} />. {text.peer(message.peer)}</Text>
        <Loaded query={read}>
          {({ source, is_shortened: isShortened }) => (
            <>
              <Code block mah="50vh" tabIndex={0}>{source}</Code>
              {isShortened && <Text size="sm">{text.isShortened}</Text>}
            </>
          )}
        </Loaded>
        <Group justify="flex-end">
          <Allowed to="operatorRemovePostmasterMail">
            {(control) => <Button {...control} color="red" variant="default" aria-haspopup="dialog" onClick={() => setAsked(true)}>{text.remove}</Button>}
          </Allowed>
          <Button variant="default" onClick={onClose}>{parts.close}</Button>
        </Group>
      </Stack>
      <Confirm
        opened={isAsked} title={text.remove} action={text.remove} isPending={remove.isPending} error={remove.error} onClose={() => setAsked(false)}
        onConfirm={() => remove.mutate(undefined, { onSuccess: () => { notify(text.removed); onClose() } })}
      >
        {text.removeWhy}
      </Confirm>
    </Modal>
  )
}

/** Mail to postmaster@ and abuse@. What strangers wrote is shown as text, never as HTML. */
import { Anchor, Button, Code, Group, Modal, Stack, Table, Text } from '@mantine/core'
import { useState } from 'react'
import { useRead, useWrite } from '../../api/queries'
import type { components } from '../../api/schema'
import { Confirm } from '../../parts/Confirm'
import { notify } from '../../parts/notify'
import { PageHeader } from '../../parts/PageHeader'
import classes from '../../parts/parts.module.css'
import { Allowed } from '../../parts/Role'
import { Empty, Loaded } from '../../parts/States'
import { Ago } from '../../parts/Time'
import { WideTable } from '../../parts/WideTable'
import { bytes } from '../../words/format'
import { inbox as text } from '../../words/operator'
import { text as parts } from '../../words/parts'

type Mail = components['schemas']['InboxEntry']

const subjectOf = ({ subject }: Mail): string => (subject === '' ? text.noSubject : subject)
const senderOf = ({ sender }: Mail): string => (sender === '' ? text.report : sender)

export default function InboxPage() {
  const read = useRead(['operator', 'inbox'], (api) => api.GET('/v1/operator/inbox'))
  const [shown, setShown] = useState<Mail | null>(null)
  const names = [text.subject, text.from, text.to, text.size, text.came]
  return (
    <>
      <PageHeader title={text.title} about={text.about} />
      <Loaded query={read} isEmpty={({ mails }) => mails.length === 0} empty={<Empty title={text.none}>{text.noneNext}</Empty>}>
        {({ mails }) => (
          <WideTable label={text.title} minWidth={760}>
            <Table.Thead><Table.Tr>{names.map((name) => <Table.Th key={name}>{name}</Table.Th>)}</Table.Tr></Table.Thead>
            <Table.Tbody>
              {mails.map((mail) => (
                <Table.Tr key={mail.id}>
                  <Table.Td className={classes.break ?? ''}><Anchor component="button" type="button" fz="sm" ta="left" aria-haspopup="dialog" onClick={() => setShown(mail)}>{subjectOf(mail)}</Anchor></Table.Td>
                  <Table.Td className={classes.break ?? ''}>{senderOf(mail)}</Table.Td>
                  <Table.Td className={classes.break ?? ''}>{mail.recipient}</Table.Td>
                  <Table.Td>{bytes(mail.bytes)}</Table.Td>
                  <Table.Td><Ago at={mail.at} /></Table.Td>
                </Table.Tr>
              ))}
            </Table.Tbody>
          </WideTable>
        )}
      </Loaded>
      {shown !== null && <Shown mail={shown} onClose={() => setShown(null)} />}
    </>
  )
}

function Shown({ mail, onClose }: { readonly mail: Mail; readonly onClose: () => void }) {
  const [isAsked, setAsked] = useState(false)
  const read = useRead(['operator', 'inbox', mail.id], (api) => api.GET('/v1/operator/inbox/{id}', { params: { path: { id: mail.id } } }), { every: false })
  const remove = useWrite((api) => api.DELETE('/v1/operator/inbox/{id}', { params: { path: { id: mail.id } } }), ['operator'])
  return (
    <Modal opened onClose={onClose} size="xl" title={subjectOf(mail)} closeButtonProps={{ 'aria-label': parts.close }}>
      <Stack>
        <Text size="sm" className={classes.break}>{senderOf(mail)}. {text.peer(mail.peer)}</Text>
        <Loaded query={read}>
          {({ source, is_shortened: isShortened }) => (
            <>
              <Code block mah="50vh" tabIndex={0}>{source}</Code>
              {isShortened && <Text size="sm">{text.isShortened}</Text>}
            </>
          )}
        </Loaded>
        <Group justify="flex-end">
          <Allowed to="operatorRemoveInboxMail">
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

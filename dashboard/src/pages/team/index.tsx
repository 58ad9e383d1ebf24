import { Button, Select, Stack, Switch, Table, Title } from '@mantine/core'
import { useDisclosure } from '@mantine/hooks'
import { IconUserPlus } from '@tabler/icons-react'
import { useState } from 'react'
import { useList, useMe, useWrite } from '../../api/queries'
import type { components } from '../../api/schema'
import { useService } from '../../api/service'
import { Confirm } from '../../parts/Confirm'
import { Foreign } from '../../parts/Foreign'
import { notify, notifyFailure } from '../../parts/notify'
import { PageHeader } from '../../parts/PageHeader'
import classes from '../../parts/parts.module.css'
import { Allowed, useMay } from '../../parts/Role'
import { Loaded } from '../../parts/States'
import { StatusBadge } from '../../parts/Status'
import { Ago } from '../../parts/Time'
import { WideTable } from '../../parts/WideTable'
import { roleNames } from '../../words/roles'
import { text } from '../../words/team'
import { Invitations } from './Invitations'
import { Invite } from './Invite'
import { ROLES } from './roles'

type Member = components['schemas']['Member']
type Role = Member['role']

export default function TeamPage() {
  const [isInviting, inviting] = useDisclosure()
  const service = useService()
  const maySee = useMay('listInvitations')
  const members = useList(
    ['members'],
    (api, cursor) => api.GET('/v1/members', { params: { query: cursor === undefined ? {} : { cursor } } }),
    (page) => page.members,
  )
  const invite = (
    <Allowed to="inviteMember" unless={service?.sends_own_mail === false ? text.noMail : null}>
      {(control) => <Button {...control} leftSection={<IconUserPlus size={16} />} aria-haspopup="dialog" onClick={inviting.open}>{text.invite}</Button>}
    </Allowed>
  )
  return (
    <>
      <PageHeader title={text.title} about={text.about} actions={invite} />
      <Loaded query={members}>
        {() => (
          <Stack>
            <Members members={members.items} />
            <Requirement />
            {members.hasNextPage && (
              <Button variant="default" loading={members.isFetchingNextPage} onClick={() => void members.fetchNextPage()}>{text.more}</Button>
            )}
          </Stack>
        )}
      </Loaded>
      {maySee && (
        <>
          <Title order={2} size="h4" mt="xl" mb="sm">{text.invitations}</Title>
          <Invitations />
        </>
      )}
      <Invite opened={isInviting} onClose={inviting.close} />
    </>
  )
}

/** Whether all members need a second factor. */
function Requirement() {
  const me = useMe()
  const [isRequired, setRequired] = useState(me.totp_required)
  const require = useWrite((api, required: boolean) => api.PUT('/v1/account/second-factor', { body: { required } }), ['members'])
  const change = (required: boolean) =>
    require.mutate(required, {
      onSuccess: () => {
        setRequired(required)
        notify(required ? text.nowRequired : text.notRequired)
      },
      onError: notifyFailure,
    })
  return (
    <Allowed to="requireSecondFactor" unless={me.user.totp_enabled || isRequired ? null : text.ownFactor}>
      {(control) => (
        <Switch
          {...control}
          label={text.required}
          description={text.requiredAbout}
          checked={isRequired}
          onChange={(event) => change(event.currentTarget.checked)}
        />
      )}
    </Allowed>
  )
}

function Members({ members }: { readonly members: readonly Member[] }) {
  const [removed, setRemoved] = useState<Member | null>(null)
  const remove = useWrite((api, id: string) => api.DELETE('/v1/members/{id}', { params: { path: { id } } }), ['members'])
  const confirm = () => {
    if (removed === null) return
    remove.mutate(removed.id, {
      onSuccess: () => {
        notify(text.removed(removed.email))
        setRemoved(null)
      },
    })
  }
  return (
    <>
      <WideTable label={text.members} minWidth={640}>
        <Table.Thead>
          <Table.Tr>
            <Table.Th>{text.email}</Table.Th>
            <Table.Th>{text.role}</Table.Th>
            <Table.Th>{text.secondFactor}</Table.Th>
            <Table.Th>{text.lastSeen}</Table.Th>
            <Table.Th>{text.actions}</Table.Th>
          </Table.Tr>
        </Table.Thead>
        <Table.Tbody>
          {members.map((member) => <Line key={member.id} member={member} remove={() => setRemoved(member)} />)}
        </Table.Tbody>
      </WideTable>
      <Confirm
        opened={removed !== null}
        title={text.removeTitle}
        action={text.remove}
        isPending={remove.isPending}
        error={remove.error}
        onConfirm={confirm}
        onClose={() => {
          remove.reset()
          setRemoved(null)
        }}
      >
        {text.removeAbout(removed?.email ?? '')}
      </Confirm>
    </>
  )
}

function Line({ member, remove }: { readonly member: Member; readonly remove: () => void }) {
  const me = useMe()
  const isOwn = member.email === me.user.email
  const change = useWrite(
    (api, role: Role) => api.PUT('/v1/members/{id}', { params: { path: { id: member.id } }, body: { role } }),
    ['members'],
  )
  const choose = (role: Role) => {
    if (role === member.role) return
    change.mutate(role, { onSuccess: () => notify(text.changed(member.email, roleNames[role])), onError: notifyFailure })
  }
  return (
    <Table.Tr>
      <Table.Td className={classes.rest ?? ''}>{isOwn && <StatusBadge state="you" label={text.you} />} <Foreign text={member.email} /></Table.Td>
      <Table.Td>
        <Allowed to="changeMemberRole" unless={isOwn ? text.ownRole : null}>
          {(control) => (
            <Select
              {...control}
              aria-label={text.roleOf(member.email)}
              data={ROLES.map((role) => ({ value: role, label: roleNames[role] }))}
              value={member.role}
              onChange={(role) => {
                if (role !== null) choose(role)
              }}
              allowDeselect={false}
              w={130}
            />
          )}
        </Allowed>
      </Table.Td>
      <Table.Td>
        <StatusBadge state="second factor" tone={member.second_factor ? 'good' : 'warn'} label={member.second_factor ? text.on : text.off} />
      </Table.Td>
      <Table.Td>{member.last_seen_at === null ? text.never : <Ago at={member.last_seen_at} />}</Table.Td>
      <Table.Td>
        <Allowed to="removeMember">
          {(control) => <Button {...control} size="xs" variant="light" color="red" aria-haspopup="dialog" onClick={remove}>{text.remove}</Button>}
        </Allowed>
      </Table.Td>
    </Table.Tr>
  )
}

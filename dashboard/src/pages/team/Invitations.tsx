import { Button, Stack, Table, Text } from '@mantine/core'
import { useList, useWrite } from '../../api/queries'
import { Foreign } from '../../parts/Foreign'
import { notify, notifyFailure } from '../../parts/notify'
import classes from '../../parts/parts.module.css'
import { Allowed } from '../../parts/Role'
import { Lines, Loaded } from '../../parts/States'
import { Ago } from '../../parts/Time'
import { WideTable } from '../../parts/WideTable'
import { roleNames } from '../../words/roles'
import { text } from '../../words/team'

export function Invitations() {
  const open = useList(
    ['invitations'],
    (api, cursor) => api.GET('/v1/invitations', { params: { query: cursor === undefined ? {} : { cursor } } }),
    (page) => page.invitations,
  )
  const revoke = useWrite((api, id: string) => api.DELETE('/v1/invitations/{id}', { params: { path: { id } } }), ['invitations'])
  return (
    <Loaded query={open} skeleton={<Lines count={2} />} isEmpty={() => open.items.length === 0} empty={<Text c="dimmed">{text.noInvitations}</Text>}>
      {() => (
        <Stack>
          <WideTable label={text.invitations} minWidth={640}>
            <Table.Thead>
              <Table.Tr>
                <Table.Th>{text.email}</Table.Th>
                <Table.Th>{text.role}</Table.Th>
                <Table.Th>{text.invitedBy}</Table.Th>
                <Table.Th>{text.expires}</Table.Th>
                <Table.Th>{text.actions}</Table.Th>
              </Table.Tr>
            </Table.Thead>
            <Table.Tbody>
              {open.items.map((invitation) => (
                <Table.Tr key={invitation.id}>
                  <Table.Td className={classes.rest ?? ''}><Foreign text={invitation.email} /></Table.Td>
                  <Table.Td>{roleNames[invitation.role]}</Table.Td>
                  <Table.Td><Foreign text={invitation.invited_by} /></Table.Td>
                  <Table.Td><Ago at={invitation.expires_at} /></Table.Td>
                  <Table.Td>
                    <Allowed to="revokeInvitation">
                      {(control) => (
                        <Button
                          {...control} size="xs" variant="light" color="red"
                          onClick={() => revoke.mutate(invitation.id, { onSuccess: () => notify(text.revoked), onError: notifyFailure })}
                        >
                          {text.revoke}
                        </Button>
                      )}
                    </Allowed>
                  </Table.Td>
                </Table.Tr>
              ))}
            </Table.Tbody>
          </WideTable>
          {open.hasNextPage && <Button variant="default" loading={open.isFetchingNextPage} onClick={() => void open.fetchNextPage()}>{text.more}</Button>}
        </Stack>
      )}
    </Loaded>
  )
}

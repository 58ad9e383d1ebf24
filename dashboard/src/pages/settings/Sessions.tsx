import { Button, Stack, Table, Text } from '@mantine/core'
import { useRead, useWrite } from '../../api/queries'
import { Foreign } from '../../parts/Foreign'
import { notify, notifyFailure } from '../../parts/notify'
import classes from '../../parts/parts.module.css'
import { Lines, Loaded } from '../../parts/States'
import { StatusBadge } from '../../parts/Status'
import { Ago } from '../../parts/Time'
import { WideTable } from '../../parts/WideTable'
import { text } from '../../words/settings'

export function Sessions() {
  const sessions = useRead(['sessions'], (api) => api.GET('/v1/auth/sessions'))
  const end = useWrite((api, id: string) => api.DELETE('/v1/auth/sessions/{id}', { params: { path: { id } } }), ['sessions'])
  return (
    <Stack gap="xs">
      <Text size="sm" c="dimmed">{text.sessionsAbout}</Text>
      <Loaded query={sessions} skeleton={<Lines count={2} />}>
        {(data) => (
          <WideTable label={text.sessions} minWidth={600}>
            <Table.Thead>
              <Table.Tr>
                <Table.Th>{text.address}</Table.Th>
                <Table.Th>{text.browser}</Table.Th>
                <Table.Th>{text.since}</Table.Th>
                <Table.Th>{text.until}</Table.Th>
                <Table.Th>{text.actions}</Table.Th>
              </Table.Tr>
            </Table.Thead>
            <Table.Tbody>
              {data.sessions.map((entry) => (
                <Table.Tr key={entry.id}>
                  <Table.Td>{entry.address} {entry.current && <StatusBadge state="current" tone="good" label={text.current} />}</Table.Td>
                  <Table.Td className={classes.rest ?? ''}><Foreign text={entry.user_agent} /></Table.Td>
                  <Table.Td><Ago at={entry.created_at} /></Table.Td>
                  <Table.Td><Ago at={entry.expires_at} /></Table.Td>
                  <Table.Td>
                    {!entry.current && (
                      <Button
                        size="xs" variant="light" color="red"
                        onClick={() => end.mutate(entry.id, { onSuccess: () => notify(text.ended), onError: notifyFailure })}
                      >
                        {text.end}
                      </Button>
                    )}
                  </Table.Td>
                </Table.Tr>
              ))}
            </Table.Tbody>
          </WideTable>
        )}
      </Loaded>
    </Stack>
  )
}

/** An address is erased from the account, and its progress shown. */
import { Button, Group, Modal, SimpleGrid, Stack, Text, TextInput } from '@mantine/core'
import { useState } from 'react'
import { useRead, useWrite } from '../../api/queries'
import { Failure } from '../../parts/States'
import { Figure } from '../../parts/Status'
import { number } from '../../words/format'
import { text as shared } from '../../words/parts'
import { text } from '../../words/suppressions'

const ASK_MS = 2_000

export function EraseDialog({ close }: { readonly close: () => void }) {
  const [email, setEmail] = useState('')
  const [id, setId] = useState<string | null>(null)
  const begin = useWrite((api, given: string) => api.POST('/v1/erasures', { body: { email: given } }), ['suppressions', 'messages', 'message'])
  const read = useRead(['erasure', id], (api) => api.GET('/v1/erasures/{id}', { params: { path: { id: id ?? '' } } }), {
    enabled: id !== null,
    every: (data) => (data?.erasure.finished_at == null ? ASK_MS : false),
  })
  const erasure = id === null ? undefined : read.data?.erasure
  return (
    <Modal opened onClose={close} title={text.eraseTitle} closeButtonProps={{ 'aria-label': shared.close }}>
      <form onSubmit={(event) => { event.preventDefault(); begin.mutate(email.trim(), { onSuccess: (answer) => setId(answer.erasure.id) }) }}>
        <Stack>
          <Text size="sm">{text.eraseWhat}</Text>
          <TextInput label={text.email} required maxLength={254} value={email} disabled={id !== null} onChange={(event) => setEmail(event.currentTarget.value)} autoComplete="off" spellCheck={false} data-autofocus />
          {erasure !== undefined && (
            <Stack gap="sm" role="status" data-erasure={erasure.status}>
              <SimpleGrid cols={2}>
                <Figure name={text.eraseMessages} value={number(erasure.messages)} />
                <Figure name={text.eraseCancelled} value={number(erasure.cancelled)} />
              </SimpleGrid>
              <Text size="sm">{erasure.finished_at === null ? text.erasing : text.erased}</Text>
            </Stack>
          )}
          {[begin.error, read.error].filter((error) => error !== null).map((error) => <Failure key={error.message} error={error} title={text.eraseTitle} />)}
          <Group justify="flex-end">
            <Button variant="default" onClick={close}>{shared.close}</Button>
            {id === null && <Button type="submit" color="red" loading={begin.isPending}>{text.erase}</Button>}
          </Group>
        </Stack>
      </form>
    </Modal>
  )
}

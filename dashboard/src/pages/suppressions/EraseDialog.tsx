/** An address is erased from the account: what that affects, then its progress. */
import { Button, Group, Modal, SimpleGrid, Stack, Text, TextInput } from '@mantine/core'
import { useMutation } from '@tanstack/react-query'
import { useState } from 'react'
import { answered, api } from '../../api/client'
import { matching } from '../../api/matching'
import { useRead, useWrite } from '../../api/queries'
import { Failure } from '../../parts/States'
import { Figure } from '../../parts/Status'
import { number } from '../../words/format'
import { text as shared } from '../../words/parts'
import { text } from '../../words/suppressions'

const ASK_MS = 2_000
const COUNTED_MOST = 500

interface Affected {
  readonly messages: number
  readonly isMore: boolean
  readonly waiting: number
  readonly isSuppressed: boolean
}

async function affectedBy(email: string): Promise<Affected> {
  const { messages, isMore } = await matching({ recipient: email }, COUNTED_MOST)
  const { suppressions } = await answered(api.GET('/v1/suppressions', { params: { query: { email } as never } }))
  return { messages: messages.length, isMore, waiting: messages.filter(({ status }) => status === 'queued').length, isSuppressed: suppressions.length > 0 }
}

export function EraseDialog({ close }: { readonly close: () => void }) {
  const [email, setEmail] = useState('')
  const [id, setId] = useState<string | null>(null)
  const count = useMutation({ mutationFn: affectedBy })
  const begin = useWrite((api, given: string) => api.POST('/v1/erasures', { body: { email: given } }), ['suppressions', 'messages', 'message'])
  const read = useRead(['erasure', id], (api) => api.GET('/v1/erasures/{id}', { params: { path: { id: id ?? '' } } }), {
    enabled: id !== null,
    every: (data) => (data?.erasure.finished_at == null ? ASK_MS : false),
  })
  const erasure = id === null ? undefined : read.data?.erasure
  const affected = count.data
  function submit(): void {
    if (affected === undefined) count.mutate(email.trim())
    else begin.mutate(email.trim(), { onSuccess: (answer) => setId(answer.erasure.id) })
  }
  return (
    <Modal opened onClose={close} title={text.eraseTitle} closeButtonProps={{ 'aria-label': shared.close }}>
      <form onSubmit={(event) => { event.preventDefault(); submit() }}>
        <Stack>
          <Text size="sm">{text.eraseWhat}</Text>
          <TextInput label={text.email} required maxLength={254} value={email} disabled={id !== null} onChange={(event) => { setEmail(event.currentTarget.value); count.reset() }} autoComplete="off" spellCheck={false} data-autofocus />
          {affected !== undefined && id === null && (
            <Stack gap="sm" role="status" data-affected>
              <SimpleGrid cols={2}>
                <Figure name={text.affectedMessages} value={text.atLeast(affected.messages, affected.isMore)} />
                <Figure name={text.affectedWaiting} value={text.atLeast(affected.waiting, affected.isMore && affected.waiting > 0)} />
              </SimpleGrid>
              <Text size="sm">{affected.isSuppressed ? text.affectedSuppressed : text.affectedNot}</Text>
            </Stack>
          )}
          {erasure !== undefined && (
            <Stack gap="sm" role="status" data-erasure={erasure.status}>
              <SimpleGrid cols={2}>
                <Figure name={text.eraseMessages} value={number(erasure.messages)} />
                <Figure name={text.eraseCancelled} value={number(erasure.cancelled)} />
              </SimpleGrid>
              <Text size="sm">{erasure.finished_at === null ? text.erasing : text.erased}</Text>
            </Stack>
          )}
          {[count.error, begin.error, read.error].filter((error) => error !== null).map((error) => <Failure key={error.message} error={error} title={text.eraseTitle} />)}
          <Group justify="flex-end">
            <Button variant="default" onClick={close}>{shared.close}</Button>
            {id === null && (affected === undefined
              ? <Button type="submit" loading={count.isPending}>{text.affectedCount}</Button>
              : <Button type="submit" color="red" loading={begin.isPending}>{text.erase}</Button>)}
          </Group>
        </Stack>
      </form>
    </Modal>
  )
}

/** Cancels messages one by one; those that were tried stay as they are. */
import { Button, Group, Modal, Progress, Stack, Text } from '@mantine/core'
import { useQueryClient } from '@tanstack/react-query'
import { useEffect, useRef, useState } from 'react'
import { answered, api } from '../../api/client'
import { useAccountId } from '../../api/queries'
import { Failure } from '../../parts/States'
import { pause } from '../../rules/again'
import type { Filters } from '../../rules/message-list'
import { Refusal } from '../../rules/refusal'
import { text } from '../../words/messages'
import { text as shared } from '../../words/parts'

const MOST = 5_000
const PAGE = 100

export default function CancelSelected({ ids, query, onClose }: {
  /** Null for all that the query chooses. */
  readonly ids: readonly string[] | null
  readonly query: Filters
  readonly onClose: () => void
}) {
  const account = useAccountId()
  const queries = useQueryClient()
  const isStopped = useRef(false)
  const [found, setFound] = useState<readonly string[] | null>(ids)
  const [done, setDone] = useState<{ readonly cancelled: number; readonly stayed: number } | null>(null)
  const [isRunning, setRunning] = useState(false)
  const [error, setError] = useState<unknown>(null)

  // Counted before anything is changed. Only queued messages can be cancelled.
  useEffect(() => {
    isStopped.current = false
    if (ids === null) waitingIds(query, () => isStopped.current).then(setFound, setError)
    return () => { isStopped.current = true }
    // eslint-disable-next-line react-hooks/exhaustive-deps -- what was chosen when the dialog opened
  }, [])

  async function run(chosen: readonly string[]): Promise<void> {
    setRunning(true)
    setError(null)
    let [cancelled, stayed] = [0, 0]
    try {
      for (const id of chosen) {
        if (isStopped.current) break
        if (await cancel(id)) cancelled += 1
        else stayed += 1
        setDone({ cancelled, stayed })
      }
    } catch (failure) {
      setError(failure)
    }
    setRunning(false)
    for (const kind of ['messages', 'message', 'account', 'ledger', 'usage']) void queries.invalidateQueries({ queryKey: [account, kind] })
  }

  return (
    <Modal opened onClose={onClose} title={text.many.cancel} closeButtonProps={{ 'aria-label': shared.close }}>
      <form onSubmit={(event) => { event.preventDefault(); if (found !== null) void run(found) }}>
        <Stack>
          <Text size="sm">{text.many.cancelEach}</Text>
          <Text size="sm" role="status">
            {done !== null ? `${text.many.cancelled(done.cancelled)} ${done.stayed > 0 ? text.many.stayed(done.stayed) : ''}` : found === null ? text.many.counting : text.many.chosen(found.length, found.length === MOST)}
          </Text>
          {isRunning && found !== null && done !== null && <Progress value={((done.cancelled + done.stayed) / found.length) * 100} aria-label={text.many.cancel} />}
          {error !== null && <Failure error={error} title={text.many.cancel} />}
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>{shared.close}</Button>
            {(done === null || isRunning) && (
              <Button type="submit" color="red" loading={isRunning || (found === null && error === null)} disabled={found === null || found.length === 0}>{text.many.cancelAction(found?.length ?? 0)}</Button>
            )}
          </Group>
        </Stack>
      </form>
    </Modal>
  )
}

/** The ids of waiting messages that match, page by page. */
async function waitingIds(query: Filters, isStopped: () => boolean): Promise<readonly string[]> {
  if (query.status !== undefined && query.status !== 'queued') return []
  const ids: string[] = []
  let cursor: string | null | undefined
  do {
    const page = await answered(api.GET('/v1/messages', { params: { query: { ...query, status: 'queued', limit: PAGE, cursor } as never } }))
    ids.push(...page.messages.map(({ id }) => id))
    cursor = page.next_cursor
  } while (cursor !== null && ids.length < MOST && !isStopped())
  return ids.slice(0, MOST)
}

/** False for a message that was tried or is final. */
async function cancel(id: string): Promise<boolean> {
  for (;;) {
    try {
      const { recipients } = await answered(api.POST('/emails/{id}/cancel', { params: { path: { id } } }))
      return recipients.every(({ status }) => status === 'cancelled')
    } catch (error) {
      if (!(error instanceof Refusal)) throw error
      if (error.status === 409 || error.status === 404) return false
      // Faster than the account may send.
      if (error.status !== 429) throw error
      await pause((error.retryAfterSeconds ?? 1) * 1000)
    }
  }
}

/** Changes messages one by one: cancels those that were not tried, or suppresses their recipients. */
import { Button, Group, Modal, Progress, Stack, Text } from '@mantine/core'
import { useQueryClient } from '@tanstack/react-query'
import { useEffect, useRef, useState } from 'react'
import { answered, api } from '../../api/client'
import { matching } from '../../api/matching'
import { useAccountId } from '../../api/queries'
import { Failure } from '../../parts/States'
import { pause } from '../../rules/again'
import type { Filters } from '../../rules/message-list'
import { Refusal } from '../../rules/refusal'
import { text } from '../../words/messages'
import { text as shared } from '../../words/parts'

const MOST = 5_000

/** What changed, and what stayed as it was. */
interface Counts {
  readonly changed: number
  readonly stayed: number
}

const WORK = {
  // Only queued messages can be cancelled.
  cancel: { change: cancel, status: 'queued', kinds: ['messages', 'message', 'account', 'ledger', 'usage'] },
  suppress: { change: suppressAll, status: undefined, kinds: ['suppressions'] },
} as const

export default function EachSelected({ what, ids, query, onClose }: {
  readonly what: keyof typeof WORK
  /** Null for all that the query chooses. */
  readonly ids: readonly string[] | null
  readonly query: Filters
  readonly onClose: () => void
}) {
  const account = useAccountId()
  const queries = useQueryClient()
  const isStopped = useRef(false)
  const [found, setFound] = useState<readonly string[] | null>(ids)
  const [done, setDone] = useState<Counts & { readonly messages: number } | null>(null)
  const [isRunning, setRunning] = useState(false)
  const [error, setError] = useState<unknown>(null)
  const says = text.each[what]
  const { change, status, kinds } = WORK[what]

  // Counted before anything is changed.
  useEffect(() => {
    isStopped.current = false
    if (ids === null) idsOf(query, status, () => isStopped.current).then(setFound, setError)
    return () => { isStopped.current = true }
    // eslint-disable-next-line react-hooks/exhaustive-deps -- what was chosen when the dialog opened
  }, [])

  async function run(chosen: readonly string[]): Promise<void> {
    setRunning(true)
    setError(null)
    let [changed, stayed, messages] = [0, 0, 0]
    // What was changed for an earlier message.
    const known = new Set<string>()
    try {
      for (const id of chosen) {
        if (isStopped.current) break
        const counts = await change(id, known)
        changed += counts.changed
        stayed += counts.stayed
        messages += 1
        setDone({ changed, stayed, messages })
      }
    } catch (failure) {
      setError(failure)
    }
    setRunning(false)
    for (const kind of kinds) void queries.invalidateQueries({ queryKey: [account, kind] })
  }

  return (
    <Modal opened onClose={onClose} title={says.title} closeButtonProps={{ 'aria-label': shared.close }}>
      <form onSubmit={(event) => { event.preventDefault(); if (found !== null) void run(found) }}>
        <Stack>
          <Text size="sm">{says.why}</Text>
          <Text size="sm" role="status">
            {done !== null ? `${says.changed(done.changed)} ${done.stayed > 0 ? says.stayed(done.stayed) : ''}` : found === null ? text.many.counting : says.chosen(found.length, found.length === MOST)}
          </Text>
          {isRunning && found !== null && done !== null && <Progress value={(done.messages / found.length) * 100} aria-label={says.title} />}
          {error !== null && <Failure error={error} title={says.title} />}
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>{shared.close}</Button>
            {(done === null || isRunning) && (
              <Button type="submit" color="red" loading={isRunning || (found === null && error === null)} disabled={found === null || found.length === 0}>{says.action(found?.length ?? 0)}</Button>
            )}
          </Group>
        </Stack>
      </form>
    </Modal>
  )
}

/** With a status only those that have it. */
async function idsOf(query: Filters, status: string | undefined, isStopped: () => boolean): Promise<readonly string[]> {
  if (status !== undefined && query.status !== undefined && query.status !== status) return []
  const { messages } = await matching({ ...query, ...(status !== undefined && { status }) }, MOST, isStopped)
  return messages.map(({ id }) => id)
}

/** It stays if it was tried or is final. */
async function cancel(id: string): Promise<Counts> {
  const answer = await unlessRefused(() => answered(api.POST('/emails/{id}/cancel', { params: { path: { id } } })), [404, 409])
  const isCancelled = answer?.recipients.every(({ status }) => status === 'cancelled') === true
  return isCancelled ? { changed: 1, stayed: 0 } : { changed: 0, stayed: 1 }
}

async function suppressAll(id: string, known: Set<string>): Promise<Counts> {
  const read = await unlessRefused(() => answered(api.GET('/v1/messages/{id}', { params: { path: { id } } })), [404])
  let [changed, stayed] = [0, 0]
  for (const email of new Set(read?.message.recipients.map((recipient) => recipient.email.toLowerCase()))) {
    if (known.has(email)) continue
    known.add(email)
    // An address that was erased is refused.
    if (await unlessRefused(() => answered(api.POST('/v1/suppressions', { body: { email, note: null } })), [400]) === null) stayed += 1
    else changed += 1
  }
  return { changed, stayed }
}

/** Null if it is refused with one of these statuses; waits if the account may not send that many requests yet. */
async function unlessRefused<T>(ask: () => Promise<T>, statuses: readonly number[]): Promise<T | null> {
  for (;;) {
    try {
      return await ask()
    } catch (error) {
      if (!(error instanceof Refusal)) throw error
      if (statuses.includes(error.status)) return null
      if (error.status !== 429) throw error
      await pause((error.retryAfterSeconds ?? 1) * 1000)
    }
  }
}

/** Failed mail becomes new messages: counted first, and followed while it is made. */
import { Button, Group, Modal, Select, SimpleGrid, Stack, Text, TextInput } from '@mantine/core'
import { useState } from 'react'
import type { Api } from '../api/client'
import { useRead, useWrite } from '../api/queries'
import type { components } from '../api/schema'
import { Allowed } from './Role'
import { Failure } from './States'
import { Figure } from './Status'
import { PERIODS, periodStart, type Period } from '../rules/message-list'
import type { Operation } from '../rules/role'
import { number } from '../words/format'
import { text } from '../words/messages'
import { text as shared } from '../words/parts'

type Resend = components['schemas']['Resend']
const ASK_MS = 1_000
// `randomUUID` is there with https alone.
const newKey = (): string => [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, '0')).join('')

export type Asked = components['schemas']['ResendRequest']
type Answer = ReturnType<typeof OWN.get>

/** Of the account that is shown, or of one that an operator helps. */
export interface Calls {
  readonly needs: Operation
  readonly begin: (api: Api, key: string, asked: Asked) => Answer
  readonly get: (api: Api, id: string) => Answer
  readonly stop: (api: Api, id: string) => Answer
}

const OWN = {
  needs: 'stopResend' as const,
  begin: (api: Api, key: string, asked: Asked) => api.POST('/v1/resends', { params: { header: { 'Idempotency-Key': key } }, body: asked }),
  get: (api: Api, id: string) => api.GET('/v1/resends/{id}', { params: { path: { id } } }),
  stop: (api: Api, id: string) => api.POST('/v1/resends/{id}/stop', { params: { path: { id } } }),
}

export default function SendAgain({ tag: given, calls = OWN, onClose }: { readonly tag: string; readonly calls?: Calls; readonly onClose: () => void }) {
  const [period, setPeriod] = useState<Period>('day')
  const [tag, setTag] = useState(given)
  const [destination, setDestination] = useState('')
  const [id, setId] = useState<string | null>(null)
  const begin = useWrite(
    (api, asked: Pick<Resend, 'since' | 'dry_run'> & { readonly until: string | null }) => calls.begin(api, newKey(), {
      ...asked, tag: tag.trim() === '' ? null : tag.trim(), destination: destination.trim() === '' ? null : destination.trim(), metadata: null,
    }),
    ['messages'],
  )
  const stop = useWrite((api, stopped: string) => calls.stop(api, stopped), ['resend', 'messages'])
  const read = useRead(['resend', id], (api) => calls.get(api, id ?? ''), {
    enabled: id !== null,
    every: (data) => (data?.resend.finished_at == null ? ASK_MS : false),
  })
  const resend = id === null ? undefined : read.data?.resend
  const isRunning = id !== null && resend?.finished_at == null
  const isCounted = resend !== undefined && resend.dry_run && !isRunning && resend.found > 0
  const changed = () => setId(null)

  function submit(): void {
    // What is sent again is what was counted, by the same times.
    const asked = isCounted ? { since: resend.since, until: resend.until, dry_run: false } : { since: periodStart(period, new Date()), until: null, dry_run: true }
    begin.mutate(asked, { onSuccess: (answer) => setId(answer.resend.id) })
  }

  return (
    <Modal opened onClose={onClose} size="lg" title={text.many.again} closeButtonProps={{ 'aria-label': shared.close }}>
      <form onSubmit={(event) => { event.preventDefault(); submit() }}>
        <Stack>
          <Text size="sm">{text.many.againWhy}</Text>
          <Select label={text.many.since} value={period} allowDeselect={false} disabled={isRunning} onChange={(chosen) => { setPeriod((chosen ?? period) as Period); changed() }} data={Object.keys(PERIODS).map((value) => ({ value, label: text.periods[value as Period] }))} />
          <TextInput label={text.many.tag} maxLength={128} value={tag} disabled={isRunning} onChange={(event) => { setTag(event.currentTarget.value); changed() }} autoComplete="off" />
          <TextInput label={text.many.destination} value={destination} disabled={isRunning} onChange={(event) => { setDestination(event.currentTarget.value); changed() }} autoComplete="off" spellCheck={false} />
          {resend !== undefined && <Progress resend={resend} />}
          {[begin.error, read.error, stop.error].filter((error) => error !== null).map((error) => <Failure key={error.message} error={error} title={text.many.again} />)}
          <Group justify="flex-end">
            {resend !== undefined && !resend.dry_run && isRunning && (
              <Allowed to={calls.needs}>
                {(control) => <Button {...control} variant="default" loading={stop.isPending} onClick={() => stop.mutate(resend.id)}>{text.many.stop}</Button>}
              </Allowed>
            )}
            <Button variant="default" onClick={onClose}>{shared.close}</Button>
            {(resend === undefined || resend.dry_run) && (
              <Button type="submit" loading={begin.isPending || isRunning}>{isCounted ? text.many.againAction(resend.found) : text.many.count}</Button>
            )}
          </Group>
        </Stack>
      </form>
    </Modal>
  )
}

function Progress({ resend }: { readonly resend: Resend }) {
  const { many } = text
  const figures = {
    [many.found]: resend.found, [many.recipients]: resend.recipients, [many.resent]: resend.resent,
    [many.noBody]: resend.no_body, [many.never]: resend.never, [many.refused]: resend.refused,
  }
  const isOver = resend.finished_at !== null
  const says = resend.dry_run ? (isOver ? null : many.counting) : resend.status === 'stopped' ? many.stopped : isOver ? many.done : many.underWay
  return (
    <Stack gap="sm" role="status" data-resend={resend.status}>
      <SimpleGrid cols={{ base: 2, sm: 3 }}>
        {Object.entries(figures).map(([name, count]) => <Figure key={name} name={name} value={number(count)} />)}
      </SimpleGrid>
      {says !== null && <Text size="sm">{says}</Text>}
      {resend.waits_for !== null && <Text size="sm">{many.waitsFor(resend.waits_for)}</Text>}
    </Stack>
  )
}

/** A resend from its count to its end, of the account on the page or of one that an operator helps. */
import { useState } from 'react'
import type { Api } from './client'
import { newKey } from './new-key'
import { useRead, useWrite } from './queries'
import type { components } from './schema'

export type Asked = components['schemas']['ResendRequest']

const ASK_MS = 1_000

const OWN = {
  begin: (api: Api, key: string, asked: Asked) => api.POST('/v1/resends', { params: { header: { 'Idempotency-Key': key } }, body: asked }),
  get: (api: Api, id: string) => api.GET('/v1/resends/{id}', { params: { path: { id } } }),
  stop: (api: Api, id: string) => api.POST('/v1/resends/{id}/stop', { params: { path: { id } } }),
}
type Answer = ReturnType<typeof OWN.get>

export interface ResendCalls {
  readonly begin: (api: Api, key: string, asked: Asked) => Answer
  readonly get: (api: Api, id: string) => Answer
  readonly stop: (api: Api, id: string) => Answer
}

export function useResend(calls: ResendCalls = OWN) {
  const [id, setId] = useState<string | null>(null)
  const begin = useWrite((api, asked: Asked) => calls.begin(api, newKey(), asked), ['messages'])
  const stop = useWrite((api, stopped: string) => calls.stop(api, stopped), ['resend', 'messages'])
  const read = useRead(['resend', id], (api) => calls.get(api, id ?? ''), {
    enabled: id !== null,
    every: (data) => (data?.resend.finished_at == null ? ASK_MS : false),
  })
  const resend = id === null ? undefined : read.data?.resend
  return {
    resend,
    isRunning: id !== null && resend?.finished_at == null,
    isBeginning: begin.isPending,
    isStopping: stop.isPending,
    errors: [begin.error, read.error, stop.error].filter((error) => error !== null),
    begin: (asked: Asked) => begin.mutate(asked, { onSuccess: (answer) => setId(answer.resend.id) }),
    stop: (stopped: string) => stop.mutate(stopped),
    /** The choice changed: the count no longer holds. */
    forget: () => setId(null),
  }
}

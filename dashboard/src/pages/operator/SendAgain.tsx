/** An account's failed mail, for an operator. */
import { useMemo } from 'react'
import { useResend, type ResendCalls } from '../../api/resend'
import { SendAgain } from '../../parts/SendAgain'

const toStop = { needs: 'operatorStopResend' } as const

const callsOf = (account: string): ResendCalls => ({
  begin: (api, key, asked) => api.POST('/v1/operator/accounts/{account}/resends', { params: { path: { account }, header: { 'Idempotency-Key': key } }, body: asked }),
  get: (api, id) => api.GET('/v1/operator/accounts/{account}/resends/{id}', { params: { path: { account, id } } }),
  stop: (api, id) => api.POST('/v1/operator/accounts/{account}/resends/{id}/stop', { params: { path: { account, id } } }),
})

export default function SendOfAccountAgain({ account, onClose }: { readonly account: string; readonly onClose: () => void }) {
  const calls = useMemo(() => callsOf(account), [account])
  return <SendAgain work={useResend(calls)} toStop={toStop.needs} onClose={onClose} />
}

import { useResend } from '../../api/resend'
import { SendAgain, type Range } from '../../parts/SendAgain'

const toStop = { needs: 'stopResend' } as const

export default function SendOwnAgain({ tag, range, onClose }: { readonly tag: string; readonly range?: Range; readonly onClose: () => void }) {
  return <SendAgain work={useResend()} tag={tag} toStop={toStop.needs} onClose={onClose} {...(range === undefined ? {} : { range })} />
}

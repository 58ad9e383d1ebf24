import { useResend } from '../../api/resend'
import { SendAgain } from '../../parts/SendAgain'

const toStop = { needs: 'stopResend' } as const

export default function SendOwnAgain({ tag, onClose }: { readonly tag: string; readonly onClose: () => void }) {
  return <SendAgain work={useResend()} tag={tag} toStop={toStop.needs} onClose={onClose} />
}

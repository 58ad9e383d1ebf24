import { useResend } from '../../api/resend'
import { SendAgain } from '../../parts/SendAgain'
import type { ToSendAgain } from '../../rules/message-list'

const toStop = { needs: 'stopResend' } as const

export default function SendOwnAgain({ onClose, ...chosen }: ToSendAgain & { readonly onClose: () => void }) {
  return <SendAgain work={useResend()} toStop={toStop.needs} onClose={onClose} {...chosen} />
}

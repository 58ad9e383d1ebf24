import { duration } from '../../words/format'
import { text } from '../../words/webhooks'

interface Answered {
  readonly http_status: number | null
  readonly duration_ms: number | null
}

/** "HTTP 200 in 12 ms", "no answer in 5 sec". */
export function answerOf({ http_status: status, duration_ms: ms }: Answered): string {
  const what = status === null ? text.noAnswer : text.http(status)
  return ms === null ? what : `${what} ${text.took(duration(ms / 1000))}`
}

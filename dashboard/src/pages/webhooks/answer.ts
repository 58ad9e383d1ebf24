import { duration } from '../../words/format'
import { text } from '../../words/webhooks'

interface Answered {
  readonly http_status: number | null
  readonly duration_ms: number | null
}

/** "HTTP 200 in 12 ms", "No response after 5 sec", "No response" at once. */
export function answerOf({ http_status: status, duration_ms: ms }: Answered): string {
  if (status !== null) return ms === null ? text.http(status) : `${text.http(status)} ${text.took(duration(ms / 1000))}`
  return ms === null || ms === 0 ? text.noAnswer : `${text.noAnswer} ${text.waited(duration(ms / 1000))}`
}

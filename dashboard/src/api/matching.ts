/** The messages that a query chooses, read page by page up to a bound. */
import type { Filters } from '../rules/message-list'
import { answered, api } from './client'
import type { components } from './schema'

const PAGE = 100

export async function matching(query: Filters, most: number, isStopped: () => boolean = () => false): Promise<{
  readonly messages: readonly components['schemas']['ListedMessage'][]
  readonly isMore: boolean
}> {
  const messages: components['schemas']['ListedMessage'][] = []
  let cursor: string | null | undefined
  do {
    const page = await answered(api.GET('/v1/messages', { params: { query: { ...query, limit: PAGE, cursor } as never } }))
    messages.push(...page.messages)
    cursor = page.next_cursor
  } while (cursor !== null && messages.length < most && !isStopped())
  return { messages: messages.slice(0, most), isMore: cursor !== null || messages.length > most }
}

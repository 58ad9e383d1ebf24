/** What happened to a message, derived from its detail: counts, steps of a recipient, when to ask again. */

export interface AttemptFacts {
  readonly started_at: string
  readonly duration_ms: number | null
  readonly outcome: string | null
}

export interface RecipientFacts {
  readonly status: string
  readonly delivered_at: string | null
  readonly attempts: readonly AttemptFacts[]
  readonly waiting: { readonly next_at: string | null } | null
}

const SECOND = 1_000
const FRESH_MS = 60 * SECOND
const ASK_MS_MAX = 30 * SECOND
/** Shorter waits are not worth a step. */
const WAIT_SECONDS_MIN = 2

/** The state of a recipient, in the words of a message's `state`. */
export function recipientState({ status, waiting, explanation }: {
  readonly status: string
  readonly waiting: { readonly reason: string } | null
  readonly explanation?: { readonly reason: string }
}): string {
  if (waiting?.reason === 'scheduled') return 'scheduled'
  return status === 'bounced' && (explanation?.reason === 'suppressed' || explanation?.reason === 'unsubscribed') ? 'suppressed' : status
}

/** What needs attention comes first. */
const URGENCY = ['failed', 'bounced', 'suppressed', 'deferred', 'queued', 'scheduled', 'cancelled', 'delivered']

export function byUrgency<R>(recipients: readonly R[], stateOf: (recipient: R) => string): readonly R[] {
  return [...recipients].sort((a, b) => URGENCY.indexOf(stateOf(a)) - URGENCY.indexOf(stateOf(b)))
}

/** Things with the same key together, in the order of the first of each. */
export function groupBy<Item>(items: readonly Item[], keyOf: (item: Item) => string): readonly (readonly [Item, ...Item[]])[] {
  const groups = new Map<string, [Item, ...Item[]]>()
  for (const item of items) {
    const key = keyOf(item)
    const known = groups.get(key)
    if (known === undefined) groups.set(key, [item])
    else known.push(item)
  }
  return [...groups.values()]
}

export interface Counts {
  readonly delivered: number
  readonly bounced: number
  readonly suppressed: number
  readonly failed: number
  readonly cancelled: number
  readonly waiting: number
}

export function countsOf(found: readonly string[]): Counts {
  const count = (...states: string[]) => found.filter((state) => states.includes(state)).length
  return {
    delivered: count('delivered'), bounced: count('bounced'), suppressed: count('suppressed'), failed: count('failed'), cancelled: count('cancelled'),
    waiting: count('queued', 'deferred', 'scheduled'),
  }
}

/** Milliseconds until the message is read again: each second while it is new or a try is due, else by its next try. */
export function askAgainMs(recipients: readonly RecipientFacts[], createdAt: string, now: Date): number {
  const open = recipients.filter(({ waiting }) => waiting !== null)
  if (open.length === 0) return ASK_MS_MAX
  const age = now.getTime() - new Date(createdAt).getTime()
  if (age < FRESH_MS) return SECOND
  const nexts = open.map(({ waiting }) => (waiting?.next_at == null ? ASK_MS_MAX : new Date(waiting.next_at).getTime() - now.getTime()))
  return Math.min(ASK_MS_MAX, Math.max(SECOND, ...[Math.min(...nexts) + SECOND]))
}

export type RecipientStep<A> =
  | { readonly kind: 'waited'; readonly seconds: number; readonly isFirst: boolean }
  | { readonly kind: 'attempt'; readonly attempt: A; readonly place: number }

/** The tries in their order with the waits between them; postponed ones are not counted. */
export function stepsOf<A extends AttemptFacts>(attempts: readonly A[], acceptedAt: string): readonly RecipientStep<A>[] {
  const steps: RecipientStep<A>[] = []
  let since = new Date(acceptedAt).getTime()
  let place = 0
  for (const attempt of attempts) {
    const began = new Date(attempt.started_at).getTime()
    const seconds = (began - since) / SECOND
    if (seconds >= WAIT_SECONDS_MIN) steps.push({ kind: 'waited', seconds, isFirst: place === 0 })
    if (attempt.outcome !== 'postponed') place += 1
    steps.push({ kind: 'attempt', attempt, place })
    since = began + (attempt.duration_ms ?? 0)
  }
  return steps
}

export const secondsBetween = (from: string, to: string): number => (new Date(to).getTime() - new Date(from).getTime()) / SECOND

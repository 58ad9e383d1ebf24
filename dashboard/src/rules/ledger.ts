/** The filters of the ledger, as its address has them. */
export const LEDGER_FILTERS = ['kind', 'from', 'to', 'message_id'] as const
export type LedgerFilters = Partial<Record<(typeof LEDGER_FILTERS)[number], string>>
export const KINDS = ['grant', 'reserve', 'settle', 'release', 'day'] as const
export type Kind = (typeof KINDS)[number]

export interface LedgerQuery {
  readonly kind?: Kind
  readonly from?: string
  readonly to?: string
  readonly message_id?: string
}

const DAY = /^\d{4}-\d{2}-\d{2}$/
const MESSAGE_ID = /^em_[0-9a-z]{26}$/

/** Leaves out values that the service would refuse. */
export function ledgerQuery({ kind, from, to, message_id: messageId }: LedgerFilters): LedgerQuery {
  const known = KINDS.find((name) => name === kind)
  return {
    ...(known === undefined ? {} : { kind: known }),
    ...(from !== undefined && isDay(from) ? { from } : {}),
    ...(to !== undefined && isDay(to) ? { to } : {}),
    ...(messageId !== undefined && MESSAGE_ID.test(messageId) ? { message_id: messageId } : {}),
  }
}

const isDay = (text: string): boolean => DAY.test(text) && !Number.isNaN(new Date(`${text}T00:00:00Z`).getTime())

interface Entry {
  readonly id: string
  readonly kind: Kind
  readonly amount: number
  readonly at: string
  readonly message_id: string | null
}

/** A line of the ledger: all entries of a message, which are next to each other, or another entry. */
export interface LedgerLine<E> {
  readonly id: string
  readonly entries: readonly [E, ...E[]]
  readonly amount: number
  readonly kind: Kind
  readonly spent: number
  readonly returned: number
  readonly open: number
}

/** `isCut`: more entries follow, so the last message may lack some; it is left out. */
export function linesOf<E extends Entry>(entries: readonly E[], isCut: boolean): readonly LedgerLine<E>[] {
  const groups: [E, ...E[]][] = []
  for (const entry of entries) {
    const last = groups.at(-1)
    if (last !== undefined && entry.message_id !== null && last[0].message_id === entry.message_id) last.push(entry)
    else groups.push([entry])
  }
  const whole = isCut && groups.at(-1)?.[0].message_id != null ? groups.slice(0, -1) : groups
  return whole.map(lineOf)
}

function lineOf<E extends Entry>(entries: readonly [E, ...E[]]): LedgerLine<E> {
  const count = (kind: Kind) => entries.filter((entry) => entry.kind === kind).length
  const [spent, returned] = [count('settle'), count('release')]
  // A reserve takes a credit for each recipient. It isn't there if only another kind is listed.
  const reserved = entries.reduce((sum, { kind, amount }) => (kind === 'reserve' ? sum - amount : sum), 0)
  const open = Math.max(0, reserved - spent - returned)
  const [{ id, kind, message_id: message }] = entries
  return {
    id: message ?? id, entries, amount: entries.reduce((sum, { amount }) => sum + amount, 0), spent, returned, open,
    kind: message === null ? kind : open > 0 ? 'reserve' : spent > 0 ? 'settle' : 'release',
  }
}

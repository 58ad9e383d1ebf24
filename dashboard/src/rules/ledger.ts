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

/** Rates from two readings of the workers' totals. */

export interface Totals {
  readonly at: string
  readonly delivered_total: number
  readonly deferred_total: number
}

export interface Rates {
  readonly delivered: number
  readonly deferred: number
}

/** A second; null before the second reading, and when a worker that was counted is gone. */
export function ratesOf(before: Totals | null, after: Totals): Rates | null {
  if (before === null) return null
  const seconds = (new Date(after.at).getTime() - new Date(before.at).getTime()) / 1000
  const delivered = after.delivered_total - before.delivered_total
  const deferred = after.deferred_total - before.deferred_total
  return seconds <= 0 || delivered < 0 || deferred < 0 ? null : { delivered: delivered / seconds, deferred: deferred / seconds }
}

/** Figures of the account: sums, how long credits last, how far suspension is. */

export interface Counts {
  readonly accepted: number
  readonly delivered: number
  readonly bounced: number
  readonly failed: number
  readonly open: number
}

export function sum(rows: readonly Counts[]): Counts {
  const of = (name: keyof Counts) => rows.reduce((total, row) => total + row[name], 0)
  return { accepted: of('accepted'), delivered: of('delivered'), bounced: of('bounced'), failed: of('failed'), open: of('open') }
}

/** A share between 0 and 1; null of nothing. */
export const share = (part: number, whole: number): number | null => (whole === 0 ? null : part / whole)

/**
 * How many days the credits last at the mean use of these days; null without use. `days` are newest first, the first
 * is today: it is not over, so it counts only if the account has no other day.
 */
export function daysLeft(available: number, days: readonly (Counts & { readonly day: string })[], createdAt: string): number | null {
  const lived = days.filter(({ day }) => day >= createdAt.slice(0, 10))
  const whole = lived.length > 1 ? lived.slice(1) : lived
  const used = sum(whole).accepted
  return used === 0 ? null : Math.floor(available / (used / whole.length))
}

interface Mark {
  readonly percent: number
  readonly count: number
}

/** After how many further bad results, with no good result between them, the mark is reached; 0 if it is. */
export function stepsToMark(count: number, results: number, resultsMin: number, mark: Mark): number {
  const level = mark.percent / 100
  const byShare = level >= 1 ? 0 : Math.ceil((level * results - count) / (1 - level) - 1e-9)
  return Math.max(0, byShare, mark.count - count, resultsMin - results)
}

export interface CountedReason {
  readonly provider: string
  readonly result: string
  readonly count: number
  readonly example_message_id: string
  readonly explanation: { readonly reason: string; readonly headline: string; readonly what_to_do: string }
}

export interface GroupedReason {
  readonly key: string
  readonly result: string
  readonly headline: string
  readonly whatToDo: string
  readonly count: number
  /** Most frequent first, each once. */
  readonly providers: readonly string[]
  readonly exampleId: string
}

/** The same reason at several providers and with several codes is a single row. Most frequent first. */
export function groupReasons(counted: readonly CountedReason[]): readonly GroupedReason[] {
  const groups = new Map<string, GroupedReason>()
  for (const { provider, result, count, example_message_id, explanation } of counted) {
    const key = `${result} ${explanation.reason} ${explanation.headline}`
    const known = groups.get(key)
    groups.set(key, {
      key,
      result,
      headline: explanation.headline,
      whatToDo: explanation.what_to_do,
      count: (known?.count ?? 0) + count,
      providers: known === undefined ? [provider] : known.providers.includes(provider) ? known.providers : [...known.providers, provider],
      exampleId: known?.exampleId ?? example_message_id,
    })
  }
  return [...groups.values()].sort((a, b) => b.count - a.count)
}

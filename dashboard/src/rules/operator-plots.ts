/** The rows of the operator's plots, from the service's answers. */

interface LimitChange {
  readonly at: string
  readonly address: string
  readonly reply: string | null
  readonly per_second: number
  readonly was_per_second: number
}

export interface Row {
  readonly at: string
  readonly values: Readonly<Record<string, number>>
}

/** For each of our addresses, the oldest limit change first: the learned rate, and the rates at which mail was refused. */
export function ratePlots(changes: readonly LimitChange[], shown: (at: string) => string): (readonly [address: string, rows: readonly Row[]])[] {
  const rows = new Map<string, Row[]>()
  for (const { at, address, reply, per_second: rate, was_per_second: refused } of [...changes].reverse()) {
    rows.set(address, [...(rows.get(address) ?? []), { at: shown(at), values: reply === null ? { rate } : { rate, refused } }])
  }
  return [...rows].filter(([, found]) => found.length > 1)
}

export const laneName = (place: number): string => `lane ${String(place)}`

interface WarmUp {
  readonly accepted: number
  readonly accepted_before: readonly number[]
}

/** The emails that each lane accepted, day by day until today (0). Lanes are named by place: a chart reads a dot in a name as a path. */
export function warmUpRows(warmUps: readonly WarmUp[], shown: (daysAgo: number) => string): Row[] {
  const days = Math.max(0, ...warmUps.map(({ accepted_before: before }) => before.length))
  return Array.from({ length: days + 1 }, (_, place) => {
    const ago = days - place
    const values = warmUps.flatMap(({ accepted, accepted_before: before }, lane) => {
      const count = ago === 0 ? accepted : before.at(-ago)
      return count === undefined ? [] : [[laneName(lane), count] as const]
    })
    return { at: shown(ago), values: Object.fromEntries(values) }
  })
}

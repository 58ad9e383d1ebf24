/** Entries under the day on which they happened, in the reader's time zone. */
import { date } from '../words/format'

export interface Day<Item> {
  readonly day: string
  readonly items: readonly Item[]
}

/** In the order of the entries; `at` is when an entry happened. */
export function byDay<Item>(items: readonly Item[], at: (item: Item) => string): readonly Day<Item>[] {
  const days: { day: string; items: Item[] }[] = []
  for (const item of items) {
    const day = date(at(item))
    if (days.at(-1)?.day === day) days.at(-1)?.items.push(item)
    else days.push({ day, items: [item] })
  }
  return days
}

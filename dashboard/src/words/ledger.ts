/** Texts of the page "ledger". */
import { list, number } from './format'
import { words } from './words'

export const text = words({
  title: 'Ledger',
  about: 'Credits that were granted, and what each message cost.',
  available: 'Available',
  availableAbout: 'can be spent now',
  reserved: 'Reserved',
  reservedAbout: 'for mail without a final result',
  reservedMore: 'or more, for mail without a final result',
  granted: 'Granted',
  grantedAbout: 'in total, minus deductions',
  list: 'Entries, newest first',
  kinds: { grant: 'grant', reserve: 'reserved', settle: 'spent', release: 'returned', day: 'sum of a day' },
  day: (reserved: string, settled: string, released: string) => `reserved ${reserved}, spent ${settled}, returned ${released}`,
  recipients: (counts: readonly (readonly [number, string])[]) => list(counts.filter(([count]) => count > 0).map(([count, kind]) => `${number(count)} ${kind}`)),
  toMessage: 'Open the message',
  kind: 'Kind',
  kindAny: 'Any kind',
  from: 'From day',
  to: 'To day',
  utc: 'Days in UTC',
  ofMessage: (id: string) => `Only of ${id}`,
  remove: 'Show all messages',
  none: 'No entries',
  noneNext: 'Credits are listed here once the operator grants some, and for each message that you send.',
  nothing: 'No entry matches',
  nothingNext: 'Choose other days or another kind.',
})

/** Texts of the page "log". */
import { words } from './words'

export const text = words({
  title: 'Log',
  about: 'Who changed what in this account. Entries can’t be edited or deleted.',
  action: 'Action',
  actionHint: 'domain.added, or domain for all of them',
  actor: 'Actor',
  actorHint: 'email address, operator or posthouse',
  since: 'From',
  until: 'Until',
  apply: 'Filter',
  clear: 'Clear filters',
  time: 'Time',
  target: 'Target',
  detail: 'Detail',
  more: 'Show more',
  end: 'End of the list',
  none: 'No entries match',
  noneNext: 'Clear the filters, or choose a longer period.',
  empty: 'No entries yet',
  emptyNext: 'Changes to keys, domains, the team and webhooks appear here.',
})

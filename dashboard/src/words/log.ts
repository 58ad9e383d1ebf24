/** Texts of the page "log". */
import { words } from './words'

export const text = words({
  title: 'Log',
  about: 'Who changed what in this account. Entries can’t be changed or removed.',
  action: 'Action',
  actionHint: 'domain.added, or domain for all of them',
  actor: 'Actor',
  actorHint: 'address, operator or posthouse',
  since: 'From',
  until: 'Until',
  apply: 'Filter',
  clear: 'Clear filters',
  time: 'Time',
  target: 'Target',
  detail: 'Detail',
  more: 'Show more',
  end: 'That is all.',
  none: 'No entry matches',
  noneNext: 'Clear the filters, or choose a longer time.',
  empty: 'No entry yet',
  emptyNext: 'Changes to keys, domains, the team and the webhook are listed here.',
})

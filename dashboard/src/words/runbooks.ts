/** Texts around the runbooks; their own are in docs/runbooks. */
import { words } from './words'

export const text = words({
  title: 'Runbooks',
  about: 'Each alert and each check of posthouse doctor has a page: what it means, how to check, what to do, and when it is resolved.',
  unknown: 'There is no runbook with this name. These are all:',
  all: 'All runbooks',
})

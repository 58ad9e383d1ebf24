/** Texts around the runbooks; their own are in docs/runbooks. */
import { words } from './words'

export const text = words({
  unknown: 'There is no runbook with this name. These are all:',
  all: 'All runbooks',
})

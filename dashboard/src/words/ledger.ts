/** Texts of the page "ledger". */
import { words } from './words'

export const text = words({
  title: 'Ledger',
})

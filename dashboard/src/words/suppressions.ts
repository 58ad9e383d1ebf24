/** Texts of the page "suppressions". */
import { words } from './words'

export const text = words({
  title: 'Suppressions',
})

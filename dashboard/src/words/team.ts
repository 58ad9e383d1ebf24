/** Texts of the page "team". */
import { words } from './words'

export const text = words({
  title: 'Team',
})

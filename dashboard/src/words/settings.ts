/** Texts of the page "settings". */
import { words } from './words'

export const text = words({
  title: 'Settings',
})

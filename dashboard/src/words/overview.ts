/** Texts of the page "overview". */
import { words } from './words'

export const text = words({
  title: 'Overview',
})

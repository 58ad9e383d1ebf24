/** Texts of the page "templates". */
import { words } from './words'

export const text = words({
  title: 'Templates',
})

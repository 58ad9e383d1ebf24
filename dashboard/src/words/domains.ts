/** Texts of the page "domains". */
import { words } from './words'

export const text = words({
  title: 'Domains',
})

/** Texts of the page "keys". */
import { words } from './words'

export const text = words({
  title: 'Keys and credentials',
})

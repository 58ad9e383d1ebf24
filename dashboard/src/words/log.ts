/** Texts of the page "log". */
import { words } from './words'

export const text = words({
  title: 'Log',
})

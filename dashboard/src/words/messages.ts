/** Texts of the page "messages". */
import { words } from './words'

export const text = words({
  title: 'Messages',
})

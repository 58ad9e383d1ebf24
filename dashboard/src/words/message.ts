/** Texts of the page "message". */
import { words } from './words'

export const text = words({
  title: 'Message',
})

/** Texts of the page "start". */
import { words } from './words'

export const text = words({
  title: 'Start',
})

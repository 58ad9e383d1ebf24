/** Texts of the page "webhook". */
import { words } from './words'

export const text = words({
  title: 'Webhook',
})

/** Texts for requests that the service did not answer. */
import { words } from './words'

export const text = words({
  unreachable: 'The service can’t be reached. Check your connection, then try again.',
  status: (status: number) => `The service answered with status ${String(status)} and no text. Try again in a minute.`,
})

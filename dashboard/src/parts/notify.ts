/** A short message in the corner, read out by screen readers; their code is loaded after the page's. */
import { later } from './later'
import { refusalText } from '../rules/refusal'

const load = () => import('./Corner')

/** Where the messages are shown; the shell has it once. */
export const Corner = later(load)

export function notify(message: string): void {
  void load().then(({ show }) => show(message, 'good'))
}

export function notifyFailure(error: unknown): void {
  void load().then(({ show }) => show(refusalText(error), 'bad'))
}

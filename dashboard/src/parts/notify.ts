/** A short message in the corner, read out by screen readers. */
import { notifications } from '@mantine/notifications'
import { refusalText } from '../rules/refusal'

export function notify(message: string): void {
  notifications.show({ message, color: 'teal', role: 'status' })
}

export function notifyFailure(error: unknown): void {
  notifications.show({ message: refusalText(error), color: 'red', role: 'alert', autoClose: 10_000 })
}

import { Notifications, notifications } from '@mantine/notifications'
import '@mantine/notifications/styles.css'
import { text } from '../words/parts'

const closeButtonProps = { 'aria-label': text.close }

export function show(message: string, tone: 'good' | 'bad'): void {
  if (tone === 'good') notifications.show({ message, color: 'teal', role: 'status', closeButtonProps })
  else notifications.show({ message, color: 'red', role: 'alert', autoClose: 10_000, closeButtonProps })
}

export default function Corner() {
  return <Notifications />
}

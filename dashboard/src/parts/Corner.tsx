import { Notifications, notifications } from '@mantine/notifications'
import '@mantine/notifications/styles.css'

export function show(message: string, tone: 'good' | 'bad'): void {
  if (tone === 'good') notifications.show({ message, color: 'teal', role: 'status' })
  else notifications.show({ message, color: 'red', role: 'alert', autoClose: 10_000 })
}

export default function Corner() {
  return <Notifications />
}

import { useParam } from '../../parts/Link'
import { Delivery } from './Delivery'
import { Webhook } from './Webhook'

export default function WebhookPage() {
  const id = useParam('id')
  return id === '' ? <Webhook /> : <Delivery key={id} id={id} endpoint={null} />
}

import { useParam } from '../../parts/Link'
import { Delivery } from './Delivery'

export default function EndpointDeliveryPage() {
  const id = useParam('delivery')
  return <Delivery key={id} id={id} endpoint={useParam('id')} />
}

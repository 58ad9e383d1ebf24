/** Whether the service captures all mail: then nothing is delivered. */
import { createContext, use } from 'react'

export const CapturesContext = createContext(false)

/** What a delivery is called on this service. */
export const useDelivered = (): 'captured' | 'delivered' => (use(CapturesContext) ? 'captured' : 'delivered')

import type { components } from '../../api/schema'

type Schemas = components['schemas']

/** What happened and what to do; services before it have none. */
export interface Explanation {
  readonly reason: string
  readonly headline: string
  readonly cause: string | null
  readonly what_to_do: string
}
interface Explained {
  readonly explanation?: Explanation
}
export type Attempt = Schemas['Attempt'] & Explained
export type Recipient = Omit<Schemas['DetailedRecipient'], 'attempts'> & Explained & { readonly attempts: readonly Attempt[] }
export type Message = Omit<Schemas['MessageDetail'], 'recipients'> & { readonly recipients: readonly Recipient[] }

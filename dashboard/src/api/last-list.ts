/** The list of messages that the user saw last: a message's page leads to its neighbours in it, and back. */
import { Store } from './store'

export interface LastList {
  readonly account: string
  readonly ids: readonly string[]
  readonly search: Readonly<Record<string, string>>
}

export const lastList = new Store<LastList>({ account: '', ids: [], search: {} })

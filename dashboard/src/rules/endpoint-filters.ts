/** Which events an endpoint gets, in a line. */
import { list } from '../words/format'
import { text } from '../words/webhooks'

export interface EndpointFilters {
  readonly types: readonly (keyof typeof text.eventNames)[]
  readonly sender_domains: readonly string[]
  readonly tags: readonly string[]
  readonly mode: 'live' | 'test' | null
}

const NAMED_MAX = 3

export function filterText({ types, sender_domains: domains, tags, mode }: EndpointFilters, allTypes: number): string {
  const events = types.length === allTypes ? text.allEvents : types.length > NAMED_MAX ? text.someEvents(types.length) : text.onlyEvents(list(types.map((type) => text.eventNames[type])))
  return [
    events,
    ...(domains.length === 0 ? [] : [text.onlyFrom(list(domains))]),
    ...(tags.length === 0 ? [] : [text.onlyTagged(list(tags))]),
    ...(mode === null ? [] : [text.onlyMode[mode]]),
  ].join(' · ')
}

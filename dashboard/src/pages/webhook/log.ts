/** The log of the webhook, or of an endpoint: where it is read, and where its deliveries are shown. */
import { useList, useRead, useWrite } from '../../api/queries'
import type { components } from '../../api/schema'

export type Delivery = components['schemas']['EndpointDelivery']
export type DeliveryWithAttempts = components['schemas']['EndpointDeliveryWithAttempts']
type Type = Delivery['type']

/** Null is the webhook. */
export type EndpointId = string | null

export const WEBHOOK_TYPES = ['email.delivered', 'email.bounced', 'email.failed'] as const
export const ENDPOINT_TYPES = [
  ...WEBHOOK_TYPES, 'email.deferred', 'email.returned', 'email.complained', 'email.unsubscribed', 'email.cancelled',
  'domain.verified', 'domain.endangered', 'domain.lost', 'alert.raised', 'alert.cleared',
] as const satisfies readonly Type[]

const OF_WEBHOOK = { one: { needs: 'replayWebhookDelivery' }, all: { needs: 'replayWebhookDeliveries' }, types: [...WEBHOOK_TYPES, 'webhook.test'] } as const
const OF_ENDPOINT = { one: { needs: 'replayEndpointDelivery' }, all: { needs: 'replayEndpoint' }, types: [...ENDPOINT_TYPES, 'webhook.test'] } as const

/** The operations that replay, and the types of events. */
export const logOf = (endpoint: EndpointId): typeof OF_WEBHOOK | typeof OF_ENDPOINT => (endpoint === null ? OF_WEBHOOK : OF_ENDPOINT)

/** The page of the log, or of a delivery in it. */
export const placeOf = (endpoint: EndpointId, id?: string): readonly string[] =>
  [...(endpoint === null ? ['webhook'] : ['endpoints', endpoint]), ...(id === undefined ? [] : [id])]

interface LogFilters {
  readonly status: Delivery['status'] | undefined
  readonly type: Type | undefined
  readonly since: () => string | null
}

export function useLog(endpoint: EndpointId, key: readonly unknown[], { status, type, since }: LogFilters) {
  return useList<components['schemas']['EndpointDeliveryListResponse'], Delivery>(
    ['deliveries', endpoint, ...key],
    async (api, cursor) => {
      const query = { cursor: cursor ?? null, status, type, since: since() } as never
      if (endpoint === null) return await api.GET('/v1/webhook/deliveries', { params: { query } })
      return await api.GET('/v1/endpoints/{id}/deliveries', { params: { path: { id: endpoint }, query } })
    },
    (page) => page.deliveries,
    { keep: true },
  )
}

export function useDelivery(endpoint: EndpointId, id: string, every?: number) {
  return useRead<{ readonly delivery: DeliveryWithAttempts }>(
    ['deliveries', 'single', id],
    async (api) => endpoint === null
      ? await api.GET('/v1/webhook/deliveries/{id}', { params: { path: { id } } })
      : await api.GET('/v1/endpoints/deliveries/{id}', { params: { path: { id } } }),
    every === undefined ? {} : { every },
  )
}

export function useReplay(endpoint: EndpointId) {
  return useWrite<{ readonly delivery: Delivery }, string>(
    async (api, id) => endpoint === null
      ? await api.POST('/v1/webhook/deliveries/{id}/replay', { params: { path: { id } } })
      : await api.POST('/v1/endpoints/deliveries/{id}/replay', { params: { path: { id } } }),
    ['deliveries', 'webhook', 'endpoint'],
  )
}

export function useReplayAll(endpoint: EndpointId) {
  return useWrite<{ readonly replayed: number; readonly next_since: string | null }, string>(
    async (api, since) => endpoint === null
      ? await api.POST('/v1/webhook/replay', { body: { since } })
      : await api.POST('/v1/endpoints/{id}/replay', { params: { path: { id: endpoint } }, body: { since } }),
    ['deliveries', 'webhook', 'endpoint'],
  )
}

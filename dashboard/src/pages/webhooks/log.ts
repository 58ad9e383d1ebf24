/** The operations of the webhook, or of an endpoint, and the pages of their deliveries. */
import { useList, useRead, useWrite } from '../../api/queries'
import type { components } from '../../api/schema'

export type Delivery = components['schemas']['EndpointDelivery']
export type DeliveryWithAttempts = components['schemas']['EndpointDeliveryWithAttempts']
type Type = Delivery['type']

/** Null stands for the webhook. */
export type EndpointId = string | null

export const WEBHOOK_TYPES = ['email.delivered', 'email.bounced', 'email.failed'] as const
export const ENDPOINT_TYPES = [
  ...WEBHOOK_TYPES, 'email.deferred', 'email.returned', 'email.complained', 'email.unsubscribed', 'email.cancelled',
  'domain.verified', 'domain.endangered', 'domain.lost', 'alert.raised', 'alert.cleared',
] as const satisfies readonly Type[]

const OF_WEBHOOK = {
  one: { needs: 'replayWebhookDelivery' }, all: { needs: 'replayWebhookDeliveries' }, ping: { needs: 'pingWebhook' },
  rotate: { needs: 'rotateWebhookSecret' }, remove: { needs: 'deleteWebhook' }, types: [...WEBHOOK_TYPES, 'webhook.test'],
} as const
const OF_ENDPOINT = {
  one: { needs: 'replayEndpointDelivery' }, all: { needs: 'replayEndpoint' }, ping: { needs: 'pingEndpoint' },
  rotate: { needs: 'rotateEndpointSecret' }, remove: { needs: 'deleteEndpoint' }, types: [...ENDPOINT_TYPES, 'webhook.test'],
} as const

/** The operations that change it, and the types of events. */
export const logOf = (endpoint: EndpointId): typeof OF_WEBHOOK | typeof OF_ENDPOINT => (endpoint === null ? OF_WEBHOOK : OF_ENDPOINT)

/** In a path, the webhook's id. */
const WEBHOOK = 'account'
export const idFrom = (part: string): EndpointId => (part === WEBHOOK ? null : part)

/** The page of the log, or of a delivery in it. */
export const placeOf = (endpoint: EndpointId, id?: string): readonly string[] => ['webhooks', endpoint ?? WEBHOOK, ...(id === undefined ? [] : [id])]

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

export function usePing(endpoint: EndpointId) {
  return useWrite<{ readonly delivery: Delivery }>(
    async (api) => endpoint === null
      ? await api.POST('/v1/webhook/ping')
      : await api.POST('/v1/endpoints/{id}/ping', { params: { path: { id: endpoint } } }),
    ['deliveries', 'webhook', 'endpoint', 'progress'],
  )
}

export function useRotate(endpoint: EndpointId) {
  return useWrite<{ readonly secret: string }>(
    async (api) => endpoint === null
      ? await api.POST('/v1/webhook/rotate-secret')
      : await api.POST('/v1/endpoints/{id}/rotate-secret', { params: { path: { id: endpoint } } }),
    ['webhook', 'endpoint'],
  )
}

export function useRemove(endpoint: EndpointId) {
  return useWrite<{ readonly deleted: boolean }>(
    async (api) => endpoint === null
      ? await api.DELETE('/v1/webhook')
      : await api.DELETE('/v1/endpoints/{id}', { params: { path: { id: endpoint } } }),
    endpoint === null ? ['webhook', 'deliveries', 'progress'] : ['endpoints'],
  )
}

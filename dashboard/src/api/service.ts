/** What the operator set up, known without a sign-in. */
import { useQuery } from '@tanstack/react-query'
import { answered, api } from './client'
import type { components } from './schema'

/** Null until it is known. */
export function useService(): components['schemas']['ServiceInfo'] | null {
  const { data } = useQuery({
    queryKey: ['service'],
    queryFn: async () => (await answered(api.GET('/v1/service'))).service,
    refetchInterval: false,
    staleTime: 600_000,
  })
  return data ?? null
}

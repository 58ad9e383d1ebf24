/** What the operator set up, known without a sign-in. */
import { useQuery } from '@tanstack/react-query'
import { readText } from './client'

export interface Service {
  readonly name: string
  readonly version: string
  readonly docs_url: string
  /** Whether invitations, password resets and alerts can go by mail. */
  readonly sends_own_mail: boolean
  readonly submission: { readonly host: string; readonly starttls_port: number | null; readonly tls_port: number | null } | null
  /** Whether all mail is captured: none leaves. */
  readonly captures: boolean
  readonly simulator_domain: string
}

/** Null until it is known. */
export function useService(): Service | null {
  const { data } = useQuery({
    queryKey: ['service'],
    queryFn: async () => (JSON.parse(await readText('/v1/service')) as { service: Service }).service,
    refetchInterval: false,
    staleTime: 600_000,
  })
  return data ?? null
}

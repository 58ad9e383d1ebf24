/** Reading and changing through the API, with TanStack Query. Keys begin with the account: accounts never mix. */
import {
  QueryClient, keepPreviousData, useInfiniteQuery, useMutation, useQuery, useQueryClient, type UseQueryResult,
} from '@tanstack/react-query'
import { useMemo } from 'react'
import { isTemporary, Refusal } from '../rules/refusal'
import { answered, api, type Api } from './client'
import { session, type Me } from './session'
import { useStore } from './store'

/** Every GET is repeated this often; hints of the stream make it sooner. */
export const POLL_MS = 30_000
const TRIES_MAX = 2

export const client = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: 5_000,
      gcTime: 120_000,
      refetchInterval: POLL_MS,
      retry: (tries, error) => tries < TRIES_MAX && isTemporary(error),
      retryDelay: (tries, error) =>
        error instanceof Refusal && error.retryAfterSeconds !== null ? Math.min(error.retryAfterSeconds, 30) * 1000 : 500 * 2 ** tries,
      // The service is asked as soon as it is back, whatever the browser says about its network.
      networkMode: 'always',
    },
    mutations: { networkMode: 'always', retry: false },
  },
})

/** The first word of a key is the kind of thing; live.ts names the kinds that a hint concerns. */
export type Key = readonly [
  kind:
    | 'account' | 'messages' | 'message' | 'events' | 'webhook' | 'endpoints' | 'endpoint' | 'deliveries' | 'domains' | 'domain' | 'keys' | 'credentials'
    | 'templates' | 'template' | 'suppressions' | 'ledger' | 'members' | 'invitations' | 'log' | 'sessions' | 'usage'
    | 'reasons' | 'progress' | 'alerts' | 'service' | 'operator' | 'resend' | 'erasure',
  ...rest: unknown[],
]

/** Reads the queries again whose keys begin with this one. Long lists stay as they are: each of their pages would be requested again. */
export function invalidate(account: string, ...key: readonly unknown[]): void {
  void client.invalidateQueries({
    queryKey: [account, ...key],
    predicate: ({ state }) => ((state.data as { pages?: readonly unknown[] } | undefined)?.pages?.length ?? 0) <= 1,
  })
}

interface Answer<T> {
  readonly data?: T | undefined
  readonly error?: unknown
  readonly response: Response
}

interface ReadOptions {
  /** Milliseconds between requests; false for no repetition. 30 s unless given. */
  readonly every?: number | false
  readonly enabled?: boolean
  /** Keep the present content while other filters load. */
  readonly keep?: boolean
}

export function useAccountId(): string {
  const present = useStore(session)
  return present.state === 'signed in' || present.state === 'ended' ? present.me.account_id : ''
}

/** `useRead(['domains'], (api) => api.GET('/v1/domains'))` */
export function useRead<T>(
  key: Key,
  read: (api: Api) => Promise<Answer<T>>,
  options: Omit<ReadOptions, 'every'> & { readonly every?: number | false | ((data: T | undefined) => number | false) } = {},
): UseQueryResult<T> {
  const account = useAccountId()
  const { every } = options
  return useQuery({
    queryKey: [account, ...key],
    queryFn: () => answered(read(api)),
    enabled: options.enabled ?? true,
    ...(every === undefined ? {} : { refetchInterval: typeof every === 'function' ? ({ state }: { state: { data: T | undefined } }) => every(state.data) : every }),
    ...(options.keep === true ? { placeholderData: keepPreviousData } : {}),
  })
}

interface Page {
  readonly next_cursor?: string | null | undefined
}

/** A list that is read page by page: `items` of all pages, `fetchNextPage` for more. Repeated while it has one page. */
export function useList<P extends Page, Item>(
  key: Key,
  read: (api: Api, cursor: string | undefined) => Promise<Answer<P>>,
  items: (page: P) => readonly Item[],
  options: ReadOptions = {},
) {
  const account = useAccountId()
  const query = useInfiniteQuery({
    queryKey: [account, ...key],
    queryFn: ({ pageParam }) => answered(read(api, pageParam)),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.next_cursor ?? undefined,
    refetchInterval: ({ state }) => ((state.data?.pages.length ?? 0) > 1 ? false : (options.every ?? POLL_MS)),
    refetchOnWindowFocus: ({ state }) => (state.data?.pages.length ?? 0) <= 1,
    enabled: options.enabled ?? true,
    ...(options.keep === true ? { placeholderData: keepPreviousData } : {}),
  })
  const pages = query.data?.pages
  // eslint-disable-next-line react-hooks/exhaustive-deps -- `items` is an inline function that always does the same
  const all = useMemo(() => pages?.flatMap((page) => items(page)) ?? [], [pages])
  return { ...query, items: all }
}

/** A change; `changes` are the kinds to be read again: `useWrite((api, name: string) => api.POST(…), ['domains'])` */
export function useWrite<T, Given = void>(
  write: (api: Api, given: Given) => Promise<Answer<T>>,
  changes: readonly Key[0][] = [],
) {
  const queries = useQueryClient()
  const account = useAccountId()
  return useMutation<T, Error, Given>({
    mutationFn: (given) => answered(write(api, given)),
    onSuccess: () => {
      for (const kind of changes) void queries.invalidateQueries({ queryKey: [account, kind] })
    },
  })
}

/** The signed-in user with role and accounts. */
export function useMe(): Me {
  const present = useStore(session)
  if (present.state === 'signed in' || present.state === 'ended') return present.me
  throw new Error('Pages are shown only to a signed-in user.')
}

/** Links between pages, and the filters in the address. */
import { Anchor, Button, type AnchorProps, type ButtonProps } from '@mantine/core'
import { createLink, useNavigate, useParams, useSearch } from '@tanstack/react-router'
import { useCallback, useMemo, type ComponentPropsWithoutRef, type ReactNode } from 'react'
import { pickTexts } from '../rules/address'

/** A plain `<a>` of the router, for any styled component. */
export const RouterLink = createLink((props: ComponentPropsWithoutRef<'a'>) => <a {...props} />)

type Search = Readonly<Record<string, string | undefined>>

/** The address of a page in the present account: `path('messages', id)`. */
export function usePath(): (...parts: readonly string[]) => string {
  const account = useParams({ strict: false, select: (params: Record<string, string | undefined>) => params.account ?? '' })
  return useCallback((...parts) => `/${[account, ...parts].map(encodeURIComponent).join('/')}`, [account])
}

interface PageLinkProps {
  /** The page and what it names: `['messages', id]`. */
  readonly to: readonly string[]
  readonly search?: Search
  readonly children: ReactNode
}

export function PageLink({ to, search, children, ...rest }: PageLinkProps & AnchorProps) {
  const path = usePath()
  return <Anchor inherit {...rest} renderRoot={(props) => <RouterLink {...props} to={path(...to)} search={search as never} />}>{children}</Anchor>
}

export function PageButton({ to, search, children, ...rest }: PageLinkProps & ButtonProps) {
  const path = usePath()
  return <Button {...rest} renderRoot={(props) => <RouterLink {...props} to={path(...to)} search={search as never} />}>{children}</Button>
}

/** Go to a page in the present account. */
export function useGo(): (to: readonly string[], search?: Search) => void {
  const path = usePath()
  const navigate = useNavigate()
  return useCallback((to, search) => void navigate({ to: path(...to), search: (search ?? {}) as never }), [path, navigate])
}

/** A part of the page's path: `useParam('id')`. */
export function useParam(name: string): string {
  return useParams({ strict: false, select: (params: Record<string, string | undefined>) => params[name] ?? '' })
}

/** Filters that live in the address: `const [filters, setFilters] = useFilters(['status', 'tag'] as const)`. */
export function useFilters<Name extends string>(
  names: readonly Name[],
): [Partial<Record<Name, string>>, (changed: Partial<Record<Name, string | undefined>>) => void] {
  const search: Record<string, unknown> = useSearch({ strict: false })
  const navigate = useNavigate()
  const key = JSON.stringify(pickTexts(search, names))
  const filters = useMemo(() => JSON.parse(key) as Partial<Record<Name, string>>, [key])
  const change = useCallback(
    (changed: Partial<Record<Name, string | undefined>>) =>
      void navigate({ to: '.', search: ((present: Record<string, unknown>) => ({ ...present, ...changed })) as never, replace: true }),
    [navigate],
  )
  return [filters, change]
}

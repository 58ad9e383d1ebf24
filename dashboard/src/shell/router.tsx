/** Addresses: sign-in without an account, every page of the table within one. */
import { Center, Loader } from '@mantine/core'
import { Navigate, createRootRoute, createRoute, createRouter, lazyRouteComponent } from '@tanstack/react-router'
import { use } from 'react'
import { later } from '../parts/later'
import { made } from '../api/client'
import { useRead } from '../api/queries'
import { session } from '../api/session'
import { useStore } from '../api/store'
import { pages, type PageEntry } from '../pages/table'
import { AccessContext, useReason } from '../parts/Role'
import { BASE, parseSearch, writeSearch } from '../rules/address'
import { isUnused } from '../rules/first-steps'
import { text } from '../words/shell'
import { Broken, NotFound } from './NoAccount'
import { AccountShell } from './Shell'

const Forbidden = later(() => import('./Forbidden'))

const root = createRootRoute({ notFoundComponent: NotFound })

const outside = [
  createRoute({ getParentRoute: () => root, path: '/', component: First }),
  createRoute({ getParentRoute: () => root, path: 'login', component: lazyRouteComponent(() => import('../pages/login')) }),
  createRoute({ getParentRoute: () => root, path: 'forgotten', component: lazyRouteComponent(() => import('../pages/login/Forgotten')) }),
  createRoute({ getParentRoute: () => root, path: 'reset', component: lazyRouteComponent(() => import('../pages/login/Reset')) }),
  ...['runbooks', 'runbooks/$name'].map((path) => createRoute({ getParentRoute: () => root, path, component: lazyRouteComponent(() => import('../pages/runbooks')) })),
  createRoute({ getParentRoute: () => root, path: 'invitation', component: lazyRouteComponent(() => import('../pages/login/Invitation')) }),
]

const account = createRoute({ getParentRoute: () => root, path: '$account', component: AccountShell })
const inside = [
  createRoute({ getParentRoute: () => account, path: '/', component: Home }),
  ...pages.map((page) => createRoute({ getParentRoute: () => account, path: page.path, component: allowed(page) })),
]

/** The page, for users who may see it; other users see which role may. */
function allowed(page: PageEntry) {
  const Page = lazyRouteComponent(page.load)
  function Allowed() {
    const reason = useReason(page.needs)
    return reason === null ? <Page /> : <Forbidden title={page.label} reason={reason} />
  }
  return Object.assign(Allowed, { preload: async () => { await Page.preload?.() } })
}

function First() {
  const present = useStore(session)
  if (present.state === 'unknown') return <Waiting />
  if (present.state === 'signed out') return <Navigate to="/login" replace />
  return <Navigate to={`/${present.me.account_id}` as never} replace />
}

/** Start, until the user has done something in the account. */
function Home() {
  const { lacksFactor } = use(AccessContext)
  const { data, isLoading } = useRead(['progress'], (api) => api.GET('/v1/progress'), { enabled: !lacksFactor })
  if (isLoading) return <Waiting />
  return <Navigate to={data !== undefined && isUnused(data.steps) ? '/$account/start' : '/$account/overview'} params={true as never} replace />
}

function Waiting() {
  return <Center h="40vh"><Loader aria-label={text.loading} /></Center>
}

export const router = createRouter({
  routeTree: root.addChildren([...outside, account.addChildren(inside)]),
  basepath: BASE,
  parseSearch,
  stringifySearch: writeSearch,
  defaultPreload: 'intent',
  scrollRestoration: true,
  defaultPendingComponent: Waiting,
  defaultErrorComponent: Broken,
  defaultNotFoundComponent: NotFound,
})

// "By API" shows the requests of the present page.
router.subscribe('onBeforeLoad', ({ pathChanged }) => {
  if (pathChanged) made.set([])
})

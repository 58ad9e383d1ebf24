/** The frame around every page of an account. */
import { AppShell, Box, Center, Loader } from '@mantine/core'
import { useDisclosure, useHotkeys } from '@mantine/hooks'
import { Outlet, useNavigate, useParams, useRouter } from '@tanstack/react-router'
import { Suspense, useEffect, useMemo, useState } from 'react'
import { CapturesContext } from '../parts/captures'
import { later } from '../parts/later'
import { made } from '../api/client'
import { watch } from '../api/live'
import { session, switchTo, type Me } from '../api/session'
import { useService } from '../api/service'
import { useStore } from '../api/store'
import { Corner } from '../parts/notify'
import { AccessContext } from '../parts/Role'
import { lack, type Access } from '../rules/role'
import { text } from '../words/shell'
import { Header } from './Header'
import { Navigation } from './Navigation'
import { NoAccount } from './NoAccount'
import classes from './shell.module.css'

// What is around a page is loaded after it.
const Banners = later(() => import('./Banners'))
const Palette = later(() => import('./Palette'))
const KeyHelp = later(() => import('./KeyHelp'))
const ByApi = later(() => import('../parts/ByApi'))
const SessionDialog = later(() => import('./SessionDialog'))

/** The shell for a signed-in user; otherwise the way to sign in. */
export function AccountShell() {
  const present = useStore(session)
  const captures = useService()?.captures ?? false
  const wanted: string = useParams({ strict: false, select: (params: Record<string, string | undefined>) => params.account ?? '' })
  const me = present.state === 'signed in' || present.state === 'ended' ? present.me : null
  const isElsewhere = me !== null && me.account_id !== wanted
  const isMember = me?.accounts.some((account) => account.id === wanted) ?? false
  useEffect(() => {
    if (isElsewhere && isMember) void switchTo(wanted)
  }, [isElsewhere, isMember, wanted])
  if (present.state === 'signed out') return <ToSignIn />
  if (me === null) return <Waiting />
  if (isElsewhere) return isMember ? <Waiting /> : <NoAccount me={me} />
  return <CapturesContext value={captures}><Frame key={me.account_id} me={me} isEnded={present.state === 'ended'} /></CapturesContext>
}

/** Leads to sign-in, which leads back here. */
function ToSignIn() {
  const navigate = useNavigate()
  const router = useRouter()
  useEffect(() => {
    // Read once: while sign-in loads, the address is already that of sign-in.
    const { href } = router.state.location
    void navigate({ to: '/login', search: { to: href } as never, replace: true })
  }, [navigate, router])
  return <Waiting />
}

function Waiting() {
  return <Center h="100vh"><Loader aria-label={text.loading} /></Center>
}

function Frame({ me, isEnded }: { readonly me: Me; readonly isEnded: boolean }) {
  const [isMenuOpen, menu] = useDisclosure()
  const [isByApiOpen, byApi] = useDisclosure()
  const [isPaletteOpen, palette] = useDisclosure()
  const isIdle = useIdle()
  useHotkeys([['mod+K', palette.toggle]], [])
  const lacksFactor = me.totp_required && !me.user.totp_enabled
  const operator = me.operator == null ? 'no' : me.user.totp_enabled ? 'yes' : 'lacks factor'
  const access = useMemo<Access>(() => ({ role: me.role, lacksFactor, operator }), [me.role, lacksFactor, operator])
  const mayWatch = lack(access, 'watchAccount') === null
  useEffect(() => (mayWatch ? watch(me.account_id) : undefined), [mayWatch, me.account_id])
  return (
    <AccessContext value={access}>
      <a href="#content" className={classes.skip} onClick={(event) => { event.preventDefault(); document.getElementById('content')?.focus() }}>{text.skip}</a>
      <AppShell header={{ height: 56 }} navbar={{ width: 230, breakpoint: 'sm', collapsed: { mobile: !isMenuOpen } }} padding="md">
        {/* Its menus open over the navigation, which is at 101. */}
        <AppShell.Header zIndex={102} className={classes.header ?? ''}><Header me={me} isMenuOpen={isMenuOpen} onMenu={menu.toggle} onPalette={palette.open} onByApi={byApi.open} /></AppShell.Header>
        <AppShell.Navbar p="xs" className={classes.navbar ?? ''} withBorder component="div"><Navigation onOpen={menu.close} /></AppShell.Navbar>
        <AppShell.Main id="content" tabIndex={-1} className={classes.main ?? ''}>
          <Suspense fallback={<Box mb="md" />}><Banners /></Suspense>
          <Outlet />
        </AppShell.Main>
      </AppShell>
      {isIdle && (
        <Suspense>
          <Palette me={me} opened={isPaletteOpen} onClose={palette.close} />
          <Requests opened={isByApiOpen} onClose={byApi.close} />
          <SessionDialog me={me} opened={isEnded} />
          <KeyHelp />
          <Corner />
        </Suspense>
      )}
    </AccessContext>
  )
}

/** Separate from the frame, which is not rendered again for each request. */
function Requests({ opened, onClose }: { readonly opened: boolean; readonly onClose: () => void }) {
  return <ByApi opened={opened} onClose={onClose} requests={useStore(made)} origin={location.origin} />
}

/** True once the page's own work is done. */
function useIdle(): boolean {
  const [isIdle, setIdle] = useState(false)
  useEffect(() => {
    const timer = setTimeout(() => setIdle(true), 200)
    return () => clearTimeout(timer)
  }, [])
  return isIdle
}

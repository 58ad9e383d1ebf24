/** Menu, account, search, commands, help, theme and user. */
import { ActionIcon, Box, Burger, Button, Group, Text, Tooltip, useComputedColorScheme, useMantineColorScheme } from '@mantine/core'
import { IconCode, IconCommand, IconHelp, IconMoon, IconSun, IconUser } from '@tabler/icons-react'
import { useLocation } from '@tanstack/react-router'
import { Suspense, use, type ComponentPropsWithoutRef, type ReactNode } from 'react'
import type { Me } from '../api/session'
import icon from '../icon.svg'
import { isOperating } from '../pages/table'
import { later } from '../parts/later'
import { AccessContext } from '../parts/Role'
import { BASE } from '../rules/address'
import { text } from '../words/shell'
import { CaptureMark, LiveMark } from './LiveMark'
import classes from './shell.module.css'

const SearchBox = later(() => import('./SearchBox'))
const AccountMenu = later(async () => ({ default: (await import('./Menus')).AccountMenu }))
const UserMenu = later(async () => ({ default: (await import('./Menus')).UserMenu }))

export function Header({ me, isMenuOpen, onMenu, onPalette, onByApi }: {
  readonly me: Me
  readonly isMenuOpen: boolean
  readonly onMenu: () => void
  readonly onPalette: () => void
  readonly onByApi: () => void
}) {
  const pathname = useLocation({ select: (location) => location.pathname })
  const operates = isOperating(pathname)
  const help = operates ? { label: text.runbooks, href: `${BASE}/runbooks` } : { label: text.apiReference, href: '/docs' }
  return (
    <Group h="100%" px="md" wrap="nowrap" gap="xs">
      <Burger opened={isMenuOpen} onClick={onMenu} hiddenFrom="sm" size="sm" aria-label={text.menu} />
      <img src={icon} alt={text.service} width={24} height={24} />
      <Account me={me} operates={operates} />
      <Box flex={1} visibleFrom="sm" maw={480} mx="auto">{!pathname.endsWith('/message-search') && <Suspense><SearchBox operates={operates} /></Suspense>}</Box>
      <Group gap={4} wrap="nowrap" ml="auto">
        <CaptureMark />
        <LiveMark />
        <Labelled label={text.palette} aria-keyshortcuts="Control+K" icon={<IconCommand size={18} />} onClick={onPalette} />
        <Labelled label={text.byApi} icon={<IconCode size={18} />} onClick={onByApi} />
        <Tooltip label={help.label}>
          <ActionIcon variant="default" size="lg" aria-label={help.label} component="a" href={help.href} target="_blank" rel="noreferrer" visibleFrom="xs"><IconHelp size={18} /></ActionIcon>
        </Tooltip>
        <ThemeSwitch />
        <Suspense fallback={<ActionIcon variant="default" size="lg" disabled aria-label={text.user}><IconUser size={18} /></ActionIcon>}><UserMenu me={me} /></Suspense>
      </Group>
    </Group>
  )
}

/** An icon, with its name where there is space. */
function Labelled({ label, icon: shown, ...rest }: { readonly label: string; readonly icon: ReactNode } & Pick<ComponentPropsWithoutRef<'button'>, 'onClick' | 'aria-keyshortcuts'>) {
  return (
    <Tooltip label={label}>
      <Button variant="default" h={34} px={8} aria-label={label} {...rest}>{shown}<Box component="span" visibleFrom="lg" ml={6}>{label}</Box></Button>
    </Tooltip>
  )
}

/** The account, or that the pages concern the whole service. */
function Account({ me, operates }: { readonly me: Me; readonly operates: boolean }) {
  const { operator } = use(AccessContext)
  const present = me.accounts.find((account) => account.id === me.account_id)
  const shown = operates ? text.operating : (present?.name ?? text.service)
  const name = <Text truncate fw={600} className={classes.account} title={shown}><bdi>{shown}</bdi></Text>
  if (me.accounts.length < 2 && operator === 'no') return name
  return <Suspense fallback={name}><AccountMenu me={me} shown={shown} operates={operates} isOperator={operator !== 'no'}>{name}</AccountMenu></Suspense>
}

function ThemeSwitch() {
  const { setColorScheme } = useMantineColorScheme()
  const isDark = useComputedColorScheme('light') === 'dark'
  const label = isDark ? text.toLight : text.toDark
  return (
    <Tooltip label={label}>
      <ActionIcon variant="default" size="lg" aria-label={label} onClick={() => setColorScheme(isDark ? 'light' : 'dark')}>
        {isDark ? <IconSun size={18} /> : <IconMoon size={18} />}
      </ActionIcon>
    </Tooltip>
  )
}

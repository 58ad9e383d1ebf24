/** Menu, account, search, commands, help, theme and user. */
import { ActionIcon, Box, Burger, Button, Group, Menu, Text, Tooltip, useComputedColorScheme, useMantineColorScheme } from '@mantine/core'
import { IconAdjustments, IconCheck, IconChevronDown, IconCode, IconCommand, IconHelp, IconLogout, IconMoon, IconSun, IconUser } from '@tabler/icons-react'
import { useLocation, useNavigate } from '@tanstack/react-router'
import { Suspense, use, type ComponentPropsWithoutRef, type ReactNode } from 'react'
import { signOut, type Me } from '../api/session'
import icon from '../icon.svg'
import { isOperating } from '../pages/table'
import { later } from '../parts/later'
import { useGo } from '../parts/Link'
import { AccessContext } from '../parts/Role'
import { BASE } from '../rules/address'
import { roleNames } from '../words/roles'
import { text } from '../words/shell'
import { useSwitch } from './account'
import { CaptureMark, LiveMark } from './LiveMark'
import classes from './shell.module.css'

const SearchBox = later(() => import('./SearchBox'))

// Within the header's landmark, and without an element in the menu that is not a menu item.
const IN_HEADER = { withinPortal: false, withInitialFocusPlaceholder: false }

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
      <AccountMenu me={me} operates={operates} />
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
        <UserMenu me={me} />
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

/** The account, or that the pages concern the whole service; and the way to other accounts. */
function AccountMenu({ me, operates }: { readonly me: Me; readonly operates: boolean }) {
  const { operator } = use(AccessContext)
  const switchAccount = useSwitch()
  const navigate = useNavigate()
  const go = useGo()
  const present = me.accounts.find((account) => account.id === me.account_id)
  const shown = operates ? text.operating : (present?.name ?? text.service)
  const name = <Text truncate fw={600} className={classes.account} title={shown}><bdi>{shown}</bdi></Text>
  if (me.accounts.length < 2 && operator === 'no') return name
  return (
    <Menu position="bottom-start" {...IN_HEADER}>
      <Menu.Target>
        <Button variant="subtle" color="gray" px="xs" rightSection={<IconChevronDown size={16} />} aria-label={text.switchFrom(shown)}>{name}</Button>
      </Menu.Target>
      <Menu.Dropdown mah={400}>
        <Menu.Label>{text.switchAccount}</Menu.Label>
        {me.accounts.map((account) => (
          <Menu.Item
            key={account.id} onClick={() => (operates ? void navigate({ to: `/${account.id}/overview` }) : switchAccount(account.id))}
            rightSection={!operates && account.id === me.account_id ? <IconCheck size={16} /> : null}
          >
            <Text truncate maw={260}><bdi>{account.name}</bdi></Text>
            <Text size="xs" c="dimmed">{roleNames[account.role]}</Text>
          </Menu.Item>
        ))}
        {operator !== 'no' && <Menu.Item leftSection={<IconAdjustments size={16} />} rightSection={operates ? <IconCheck size={16} /> : null} onClick={() => go(['now'])}>{text.operate}</Menu.Item>}
      </Menu.Dropdown>
    </Menu>
  )
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

function UserMenu({ me }: { readonly me: Me }) {
  return (
    <Menu position="bottom-end" {...IN_HEADER}>
      <Menu.Target>
        <ActionIcon variant="default" size="lg" aria-label={text.user} title={me.user.email}><IconUser size={18} /></ActionIcon>
      </Menu.Target>
      <Menu.Dropdown>
        <Menu.Label>{text.signedInAs(me.user.email, roleNames[me.role])}</Menu.Label>
        <Menu.Item leftSection={<IconLogout size={16} />} onClick={() => void signOut()}>{text.signOut}</Menu.Item>
      </Menu.Dropdown>
    </Menu>
  )
}

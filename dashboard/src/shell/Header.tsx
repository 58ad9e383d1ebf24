/** Menu, account, search, commands, theme and user. */
import { ActionIcon, Box, Burger, Button, Group, Menu, Text, Tooltip, useComputedColorScheme, useMantineColorScheme } from '@mantine/core'
import { IconCheck, IconChevronDown, IconCode, IconCommand, IconLogout, IconMoon, IconSun, IconUser } from '@tabler/icons-react'
import { Suspense } from 'react'
import { signOut, type Me } from '../api/session'
import { later } from '../parts/later'
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
  return (
    <Group h="100%" px="md" wrap="nowrap" gap="xs">
      <Burger opened={isMenuOpen} onClick={onMenu} hiddenFrom="sm" size="sm" aria-label={text.menu} />
      <AccountMenu me={me} />
      <Box flex={1} visibleFrom="sm" maw={480} mx="auto"><Suspense><SearchBox /></Suspense></Box>
      <Group gap={4} wrap="nowrap" ml="auto">
        <CaptureMark />
        <LiveMark />
        <Tooltip label={text.palette}>
          <ActionIcon variant="default" size="lg" aria-label={text.palette} aria-keyshortcuts="Control+K" onClick={onPalette}><IconCommand size={18} /></ActionIcon>
        </Tooltip>
        <Tooltip label={text.byApi}>
          <ActionIcon variant="default" size="lg" aria-label={text.byApi} onClick={onByApi}><IconCode size={18} /></ActionIcon>
        </Tooltip>
        <ThemeSwitch />
        <UserMenu me={me} />
      </Group>
    </Group>
  )
}

function AccountMenu({ me }: { readonly me: Me }) {
  const switchAccount = useSwitch()
  const present = me.accounts.find((account) => account.id === me.account_id)
  const name = <Text truncate fw={600} className={classes.account} title={present?.name ?? ''}>{present?.name ?? text.service}</Text>
  if (me.accounts.length < 2) return name
  return (
    <Menu position="bottom-start" {...IN_HEADER}>
      <Menu.Target>
        <Button variant="subtle" color="gray" px="xs" rightSection={<IconChevronDown size={16} />} aria-label={text.switchFrom(present?.name ?? '')}>{name}</Button>
      </Menu.Target>
      <Menu.Dropdown mah={400}>
        <Menu.Label>{text.switchAccount}</Menu.Label>
        {me.accounts.map((account) => (
          <Menu.Item key={account.id} onClick={() => switchAccount(account.id)} rightSection={account.id === me.account_id ? <IconCheck size={16} /> : null}>
            <Text truncate maw={260}>{account.name}</Text>
            <Text size="xs" c="dimmed">{roleNames[account.role]}</Text>
          </Menu.Item>
        ))}
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
        <ActionIcon variant="default" size="lg" aria-label={text.user}><IconUser size={18} /></ActionIcon>
      </Menu.Target>
      <Menu.Dropdown>
        <Menu.Label>{text.signedInAs(me.user.email, roleNames[me.role])}</Menu.Label>
        <Menu.Item leftSection={<IconLogout size={16} />} onClick={() => void signOut()}>{text.signOut}</Menu.Item>
      </Menu.Dropdown>
    </Menu>
  )
}

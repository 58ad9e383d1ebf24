/** The menus of the header, loaded after it. */
import { ActionIcon, Button, Menu, Text } from '@mantine/core'
import { IconAdjustments, IconCheck, IconChevronDown, IconLogout, IconUser } from '@tabler/icons-react'
import { useNavigate } from '@tanstack/react-router'
import type { ReactNode } from 'react'
import { signOut, type Me } from '../api/session'
import { useGo } from '../parts/Link'
import { roleNames } from '../words/roles'
import { text } from '../words/shell'
import { useSwitch } from './account'

// Within the header's landmark, and without an element in the menu that is not a menu item.
const IN_HEADER = { withinPortal: false, withInitialFocusPlaceholder: false }

/** The way to other accounts, and for operators to their own pages. */
export function AccountMenu({ me, shown, operates, isOperator, children }: {
  readonly me: Me
  readonly shown: string
  readonly operates: boolean
  readonly isOperator: boolean
  readonly children: ReactNode
}) {
  const switchAccount = useSwitch()
  const navigate = useNavigate()
  const go = useGo()
  return (
    <Menu position="bottom-start" {...IN_HEADER}>
      <Menu.Target>
        <Button variant="subtle" color="gray" px="xs" rightSection={<IconChevronDown size={16} />} aria-label={text.switchFrom(shown)}>{children}</Button>
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
        {isOperator && <Menu.Item leftSection={<IconAdjustments size={16} />} rightSection={operates ? <IconCheck size={16} /> : null} onClick={() => go(['now'])}>{text.operate}</Menu.Item>}
      </Menu.Dropdown>
    </Menu>
  )
}

export function UserMenu({ me }: { readonly me: Me }) {
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

/** Ctrl-K: every page, a search for the typed text, accounts and the theme. */
import { useMantineColorScheme, type MantineColorScheme } from '@mantine/core'
import { Spotlight, spotlight } from '@mantine/spotlight'
import '@mantine/spotlight/styles.css'
import { IconMoon, IconSearch, IconSwitchHorizontal } from '@tabler/icons-react'
import { useLocation } from '@tanstack/react-router'
import { use, useEffect, useState } from 'react'
import type { Me } from '../api/session'
import { isOperating, pages } from '../pages/table'
import { useGo } from '../parts/Link'
import { AccessContext } from '../parts/Role'
import { lack } from '../rules/role'
import { text } from '../words/shell'
import { useSwitch } from './account'
import { useSearchGo } from './search'

export default function Palette({ me, opened, onClose }: { readonly me: Me; readonly opened: boolean; readonly onClose: () => void }) {
  const [query, setQuery] = useState('')
  useEffect(() => (opened ? spotlight.open() : spotlight.close()), [opened])
  const access = use(AccessContext)
  const go = useGo()
  const operates = useLocation({ select: ({ pathname }) => isOperating(pathname) })
  const search = useSearchGo(operates)
  const switchAccount = useSwitch()
  const { colorScheme, setColorScheme } = useMantineColorScheme()
  const other: MantineColorScheme = colorScheme === 'dark' ? 'light' : 'dark'
  const matches = (label: string) => label.toLowerCase().includes(query.trim().toLowerCase())
  const shown = pages.filter((page) => page.group !== undefined && lack(access, page.needs) === null && matches(page.label))
  const accounts = me.accounts.filter((account) => account.id !== me.account_id && matches(account.name))
  const theme = other === 'dark' ? text.toDark : text.toLight
  return (
    <Spotlight.Root query={query} onQueryChange={setQuery} onSpotlightClose={onClose} shortcut={null} scrollable maxHeight={420} attributes={{ content: { 'aria-label': text.palette } }}>
      <Spotlight.Search placeholder={text.palettePlaceholder} aria-label={text.palettePlaceholder} leftSection={<IconSearch size={18} />} />
      <Spotlight.ActionsList>
        {shown.map((page) => <Spotlight.Action key={page.path} label={page.label} leftSection={<page.icon size={18} />} onClick={() => go([page.path])} />)}
        {query.trim() !== '' && <Spotlight.Action label={text.paletteSearch(query.trim())} leftSection={<IconSearch size={18} />} onClick={() => search(query)} />}
        {accounts.map((account) => (
          <Spotlight.Action key={account.id} label={account.name} description={text.switchAccount} leftSection={<IconSwitchHorizontal size={18} />} onClick={() => switchAccount(account.id)} />
        ))}
        {matches(theme) && <Spotlight.Action label={theme} leftSection={<IconMoon size={18} />} onClick={() => setColorScheme(other)} />}
      </Spotlight.ActionsList>
    </Spotlight.Root>
  )
}

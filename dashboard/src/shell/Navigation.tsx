/** The list of pages; pages that the user may not see are disabled and say which role may. */
import { NavLink } from '@mantine/core'
import { useLocation } from '@tanstack/react-router'
import { use } from 'react'
import { pages, type PageEntry } from '../pages/table'
import { RouterLink, usePath } from '../parts/Link'
import { AccessContext, useReason } from '../parts/Role'
import { text } from '../words/shell'
import classes from './shell.module.css'

const GROUPS = ['send', 'setup', 'manage', 'operate'] as const

export function Navigation({ onOpen }: { readonly onOpen: () => void }) {
  const { operator } = use(AccessContext)
  // Customers don't need to know about these pages.
  const groups = GROUPS.filter((group) => group !== 'operate' || operator !== 'no')
  return (
    <nav aria-label={text.navigation} className={classes.pages}>
      {groups.map((group) => (
        <div key={group} role="group" aria-label={text.groups[group]}>
          <div className={classes.group} aria-hidden="true">{text.groups[group]}</div>
          {pages.filter((page) => page.group === group).map((page) => <Item key={page.path} page={page} onOpen={onOpen} />)}
        </div>
      ))}
    </nav>
  )
}

function Item({ page, onOpen }: { readonly page: PageEntry; readonly onOpen: () => void }) {
  const reason = useReason(page.needs)
  const to = usePath()(page.path)
  const isActive = useLocation({ select: ({ pathname }) => pathname === to || pathname.startsWith(`${to}/`) })
  const shared = { label: page.label, leftSection: <page.icon size={18} />, variant: 'light' } as const
  if (reason !== null) return <NavLink {...shared} component="div" aria-disabled="true" disabled description={reason} data-reason={reason} />
  return <NavLink {...shared} active={isActive} onClick={onOpen} renderRoot={(props) => <RouterLink {...props} to={to} aria-current={isActive ? 'page' : undefined} />} />
}

/**
 * The list of pages; pages that the user may not see are disabled and say which role may. The operators' pages are
 * listed on their own: they concern the whole service, not the account.
 */
import { NavLink } from '@mantine/core'
import { IconAdjustments, IconArrowLeft } from '@tabler/icons-react'
import { useLocation } from '@tanstack/react-router'
import { use, useEffect, useRef } from 'react'
import { useMe } from '../api/queries'
import { isOperating, pages, type PageEntry } from '../pages/table'
import { RouterLink, usePath } from '../parts/Link'
import { AccessContext, useReason } from '../parts/Role'
import { text } from '../words/shell'
import classes from './shell.module.css'

const OF_ACCOUNT = ['send', 'setup', 'manage'] as const
const OF_OPERATORS = ['traffic', 'customers', 'installation'] as const

export function Navigation({ onOpen }: { readonly onOpen: () => void }) {
  const { operator } = use(AccessContext)
  const me = useMe()
  const pathname = useLocation({ select: (location) => location.pathname })
  // Customers don't need to know about these pages.
  const operates = operator !== 'no' && isOperating(pathname)
  const list = useRef<HTMLElement>(null)
  useEffect(() => {
    void list.current?.querySelector('[aria-current=page]')?.scrollIntoView({ block: 'nearest' })
  }, [pathname])
  return (
    <nav aria-label={text.navigation} className={classes.pages} ref={list}>
      {operates && <Item path="overview" label={text.toAccount(me.accounts.find(({ id }) => id === me.account_id)?.name ?? '')} icon={IconArrowLeft} needs="getAccount" onOpen={onOpen} />}
      {(operates ? OF_OPERATORS : OF_ACCOUNT).map((group) => (
        <div key={group} role="group" aria-label={text.groups[group]}>
          <div className={classes.group} aria-hidden="true">{text.groups[group]}</div>
          {pages.filter((page) => page.group === group).map((page) => <Item key={page.path} {...page} onOpen={onOpen} />)}
        </div>
      ))}
      {!operates && operator !== 'no' && <Item path="now" label={text.operate} icon={IconAdjustments} needs="operatorOverview" onOpen={onOpen} />}
    </nav>
  )
}

type Given = Pick<PageEntry, 'path' | 'label' | 'icon' | 'needs'> & { readonly onOpen: () => void }

function Item({ path, label, icon: Icon, needs, onOpen }: Given) {
  const reason = useReason(needs)
  const to = usePath()(path)
  const isActive = useLocation({ select: ({ pathname }) => pathname === to || pathname.startsWith(`${to}/`) })
  const shared = { label, leftSection: <Icon size={18} />, variant: 'light' } as const
  if (reason !== null) return <NavLink {...shared} component="div" aria-disabled="true" disabled description={reason} data-reason={reason} />
  return <NavLink {...shared} active={isActive} onClick={onOpen} renderRoot={(props) => <RouterLink {...props} to={to} aria-current={isActive ? 'page' : undefined} />} />
}

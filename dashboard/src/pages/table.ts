/** Every page within an account: a line adds one. */
import {
  IconActivity, IconArrowsSplit, IconBan, IconBuilding, IconCoins, IconGauge, IconHistory, IconKey, IconMail, IconNetwork, IconRocket, IconSettings, IconStack2,
  IconStethoscope, IconTemplate, IconUsers, IconWebhook, IconWorld,
} from '@tabler/icons-react'
import type { ComponentType, FunctionComponent } from 'react'
import { isForOperators, type Operation } from '../rules/role'
import { pageNames } from '../words/shell'

export interface PageEntry {
  /** Below the account; `$name` is a part that `useParam('name')` reads. */
  readonly path: string
  readonly label: string
  readonly icon: ComponentType<{ readonly size?: number | string }>
  /** Pages without a group are not in the navigation. */
  readonly group?: 'send' | 'setup' | 'manage' | 'traffic' | 'customers' | 'installation'
  /** The operation without which the page has nothing to show. */
  readonly needs: Operation
  readonly load: () => Promise<{ readonly default: FunctionComponent }>
}

export const pages: readonly PageEntry[] = [
  { path: 'start', label: pageNames.start, icon: IconRocket, group: 'send', needs: 'getAccount', load: () => import('./start') },
  { path: 'overview', label: pageNames.overview, icon: IconGauge, group: 'send', needs: 'getAccount', load: () => import('./overview') },
  { path: 'messages', label: pageNames.messages, icon: IconMail, group: 'send', needs: 'listMessages', load: () => import('./messages') },
  { path: 'messages/$id', label: pageNames.message, icon: IconMail, needs: 'getMessage', load: () => import('./message') },
  { path: 'templates', label: pageNames.templates, icon: IconTemplate, group: 'send', needs: 'listTemplates', load: () => import('./templates') },
  { path: 'templates/$alias', label: pageNames.templates, icon: IconTemplate, needs: 'getTemplate', load: () => import('./templates') },
  { path: 'suppressions', label: pageNames.suppressions, icon: IconBan, group: 'send', needs: 'listSuppressions', load: () => import('./suppressions') },
  { path: 'domains', label: pageNames.domains, icon: IconWorld, group: 'setup', needs: 'listDomains', load: () => import('./domains') },
  { path: 'domains/$name', label: pageNames.domains, icon: IconWorld, needs: 'getDomain', load: () => import('./domains') },
  { path: 'keys', label: pageNames.keys, icon: IconKey, group: 'setup', needs: 'listKeys', load: () => import('./keys') },
  { path: 'webhooks', label: pageNames.webhooks, icon: IconWebhook, group: 'setup', needs: 'getWebhook', load: () => import('./webhooks') },
  { path: 'webhooks/$id', label: pageNames.webhooks, icon: IconWebhook, needs: 'getEndpoint', load: () => import('./webhooks/Endpoint') },
  { path: 'webhooks/$id/$delivery', label: pageNames.webhooks, icon: IconWebhook, needs: 'getEndpointDelivery', load: () => import('./webhooks/Delivery') },
  { path: 'ledger', label: pageNames.ledger, icon: IconCoins, group: 'manage', needs: 'listLedger', load: () => import('./ledger') },
  { path: 'team', label: pageNames.team, icon: IconUsers, group: 'manage', needs: 'listMembers', load: () => import('./team') },
  { path: 'log', label: pageNames.log, icon: IconHistory, group: 'manage', needs: 'listAuditLog', load: () => import('./log') },
  { path: 'settings', label: pageNames.settings, icon: IconSettings, group: 'manage', needs: 'getMe', load: () => import('./settings') },
  { path: 'now', label: pageNames.now, icon: IconActivity, group: 'traffic', needs: 'operatorOverview', load: () => import('./operator/Now') },
  { path: 'queue', label: pageNames.queue, icon: IconStack2, group: 'traffic', needs: 'operatorQueue', load: () => import('./operator/Queue') },
  { path: 'lanes', label: pageNames.lanes, icon: IconArrowsSplit, group: 'traffic', needs: 'operatorListLanes', load: () => import('./operator/Lanes') },
  { path: 'lanes/$lane', label: pageNames.lane, icon: IconArrowsSplit, needs: 'operatorGetLane', load: () => import('./operator/Lane') },
  { path: 'message-search', label: pageNames.messageSearch, icon: IconMail, group: 'traffic', needs: 'operatorFindMessages', load: () => import('./operator/Messages') },
  { path: 'message-search/$id', label: pageNames.message, icon: IconMail, needs: 'operatorGetMessage', load: () => import('./operator/Message') },
  { path: 'postmaster-mail', label: pageNames.postmasterMail, icon: IconMail, group: 'traffic', needs: 'operatorListPostmasterMail', load: () => import('./operator/PostmasterMail') },
  { path: 'accounts', label: pageNames.accounts, icon: IconBuilding, group: 'customers', needs: 'operatorListAccounts', load: () => import('./operator/Accounts') },
  { path: 'accounts/$id', label: pageNames.accounts, icon: IconBuilding, needs: 'operatorGetAccount', load: () => import('./operator/Account') },
  { path: 'users', label: pageNames.users, icon: IconUsers, group: 'customers', needs: 'operatorFindUsers', load: () => import('./operator/Users') },
  { path: 'addresses', label: pageNames.addresses, icon: IconNetwork, group: 'installation', needs: 'operatorListAddresses', load: () => import('./operator/Addresses') },
  { path: 'health', label: pageNames.health, icon: IconStethoscope, group: 'installation', needs: 'operatorHealth', load: () => import('./operator/Health') },
  { path: 'operator-log', label: pageNames.operatorLog, icon: IconHistory, group: 'installation', needs: 'operatorLog', load: () => import('./operator/Log') },
]

/** Whether an address is that of an operator's page: these concern the whole service, not the account. */
export function isOperating(pathname: string): boolean {
  const [, , first] = pathname.split('/')
  return pages.some(({ path, needs }) => isForOperators(needs) && path.split('/')[0] === first)
}

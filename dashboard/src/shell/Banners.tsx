/** Banners for every page: the service can't be reached, the account may not send, a second factor is required. */
import { Alert, Stack } from '@mantine/core'
import { Suspense, use } from 'react'
import { reachable } from '../api/client'
import { useMe, useRead } from '../api/queries'
import { useStore } from '../api/store'
import { later } from '../parts/later'
import { PageLink } from '../parts/Link'
import { AccessContext } from '../parts/Role'
import { moment } from '../words/format'
import { text } from '../words/shell'
import classes from './shell.module.css'

const Impersonation = later(() => import('./Impersonation'))

export default function Banners() {
  const { impersonation } = useMe()
  const { lacksFactor } = use(AccessContext)
  const isReachable = useStore(reachable)
  const account = useRead(['account'], (api) => api.GET('/v1/account'), { enabled: !lacksFactor }).data?.account
  return (
    <Stack gap="xs" mb="md" className={classes.banners}>
      {!isReachable && <Alert color="red" role="alert" data-banner="unreachable">{text.unreachable}</Alert>}
      {impersonation != null
        ? <Suspense><Impersonation until={impersonation.until} /></Suspense>
        : account?.impersonated_until != null && <Alert color="indigo" data-banner="impersonated">{text.impersonated(moment(account.impersonated_until))}</Alert>}
      {lacksFactor && <Alert color="orange" data-banner="second-factor">{text.secondFactor} <PageLink to={['settings']}>{text.toSettings}</PageLink></Alert>}
      {account?.sending.suspended === true && (
        <Alert color="red" data-banner="suspended">{account.sending.reason == null ? text.suspendedPlain : text.suspended(account.sending.reason)}</Alert>
      )}
      {account?.reputation_warning != null && <Alert color="orange" data-banner="reputation-warning">{text.warning(account.reputation_warning.text)}</Alert>}
    </Stack>
  )
}

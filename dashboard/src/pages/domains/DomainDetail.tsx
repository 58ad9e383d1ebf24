import { Alert, Button, Group, Stack, Text, Title } from '@mantine/core'
import { IconDownload, IconRefresh } from '@tabler/icons-react'
import { useEffect, useRef } from 'react'
import { useRead } from '../../api/queries'
import type { components } from '../../api/schema'
import { DnsRecords } from '../../parts/DnsRecords'
import { PageLink } from '../../parts/Link'
import { notify, notifyFailure } from '../../parts/notify'
import { PageHeader } from '../../parts/PageHeader'
import { Allowed, useMay } from '../../parts/Role'
import { saveText } from '../../parts/save'
import { Loaded } from '../../parts/States'
import { StatusBadge } from '../../parts/Status'
import { Ago } from '../../parts/Time'
import { zoneFile } from '../../rules/zone-file'
import { text } from '../../words/domains'
import { date } from '../../words/format'
import { DomainActions } from './DomainActions'
import { stateOf } from './state'
import { useCheck, useWatch } from './watch'

type Domain = components['schemas']['Domain']

const MISSING_DAYS = 7
const DAY_MS = 24 * 60 * 60 * 1000

export function DomainDetail({ name }: { readonly name: string }) {
  const domain = useRead(['domain', name], (api) => api.GET('/v1/domains/{name}', { params: { path: { name } } }))
  const present = domain.data?.domain
  const mayVerify = useMay('verifyDomain')
  const check = useCheck(name)
  const isOpen = present !== undefined && !present.vouched && (!present.verified || present.missing_since !== null || present.rotating)
  useWatch(name, isOpen && mayVerify)
  useVerifiedNotice(present)
  const actions = present === undefined || present.shared ? undefined : (
    <>
      <Allowed to="verifyDomain">
        {(control) => (
          <Button {...control} leftSection={<IconRefresh size={16} />} loading={check.isPending} onClick={() => check.mutate(undefined, { onError: notifyFailure })}>
            {text.verify}
          </Button>
        )}
      </Allowed>
      <DomainActions name={present.name} isRotating={present.rotating} />
    </>
  )
  return (
    <>
      <PageLink to={['domains']} size="sm">{text.back}</PageLink>
      <PageHeader title={present?.name ?? name} about={present && <About domain={present} />} actions={actions} />
      <Loaded query={domain}>
        {({ domain: shown }) => (
          <Stack gap="lg">
            <State domain={shown} isWatched={isOpen && mayVerify} />
            <Records domain={shown} />
          </Stack>
        )}
      </Loaded>
    </>
  )
}

/** A short message when a domain that the user watched becomes verified. */
function useVerifiedNotice(domain: Domain | undefined): void {
  const before = useRef<boolean | undefined>(undefined)
  useEffect(() => {
    if (domain === undefined) return
    if (before.current === false && domain.verified) notify(text.nowVerified(domain.name))
    before.current = domain.verified
  }, [domain])
}

function About({ domain }: { readonly domain: Domain }) {
  const { label, tone } = stateOf(domain)
  return (
    <Group gap="xs">
      <StatusBadge state="" label={label} tone={tone} />
      {!domain.shared && <span>{domain.checked_at === null ? text.neverChecked : <>{text.checked} <Ago at={domain.checked_at} /></>}</span>}
    </Group>
  )
}

function State({ domain, isWatched }: { readonly domain: Domain; readonly isWatched: boolean }) {
  const watch = isWatched ? text.watching : text.watchingOff
  if (domain.shared) return <Alert color="teal">{text.readyShared}</Alert>
  if (domain.vouched) return <Alert color="teal">{text.readyVouched}</Alert>
  if (!domain.verified) {
    return (
      <Alert color="indigo" title={requiredFound(domain)} role="status">
        <Stack gap={4}>
          <Text size="sm">{domain.dns_host === null ? text.publish : text.publishAt(domain.dns_host)}</Text>
          <Text size="sm">{watch}</Text>
        </Stack>
      </Alert>
    )
  }
  if (domain.missing_since !== null) {
    const until = new Date(new Date(domain.missing_since).getTime() + MISSING_DAYS * DAY_MS)
    return <Alert color="red" title={text.missingTitle}>{text.missing(date(until))} {watch}</Alert>
  }
  if (domain.rotating) return <Alert color="indigo" title={text.rotatingTitle}>{text.rotatingWhy} {watch}</Alert>
  return <Alert color="teal">{text.ready}</Alert>
}

function requiredFound(domain: Domain): string {
  const required = domain.records.filter(({ required: isRequired }) => isRequired)
  return text.requiredFound(required.filter(({ result }) => result === 'found').length, required.length)
}

function Records({ domain }: { readonly domain: Domain }) {
  const own = domain.records.flatMap(({ name, value }) => (value === null ? [] : [{ name, value }]))
  if (domain.records.length === 0) return null
  return (
    <Stack gap="sm" component="section" aria-label={text.records}>
      <Group justify="space-between">
        <Title order={2} size="h4">{text.records}</Title>
        <Button variant="default" size="xs" leftSection={<IconDownload size={14} />} title={text.zoneWhy} onClick={() => saveText(`${domain.name}.zone`, zoneFile(own))}>{text.zone}</Button>
      </Group>
      <DnsRecords records={domain.records} domain={domain.name} />
    </Stack>
  )
}

import { Button, Group, Modal, SegmentedControl, Stack, Table, Text, TextInput } from '@mantine/core'
import { useNavigate } from '@tanstack/react-router'
import { useState } from 'react'
import { useList, useWrite } from '../../api/queries'
import type { components } from '../../api/schema'
import { impersonate } from '../../api/session'
import { Confirm } from '../../parts/Confirm'
import { PageLink, useFilters } from '../../parts/Link'
import { notify, notifyFailure } from '../../parts/notify'
import { PageHeader } from '../../parts/PageHeader'
import classes from '../../parts/parts.module.css'
import { Allowed } from '../../parts/Role'
import { Empty, Failure, Loaded } from '../../parts/States'
import { StatusBadge, type Tone } from '../../parts/Status'
import { Ago } from '../../parts/Time'
import { WideTable } from '../../parts/WideTable'
import { number } from '../../words/format'
import { accounts as text, shared } from '../../words/operator'
import { text as parts } from '../../words/parts'

type Account = components['schemas']['OperatorAccount']

const ORDERS = ['volume', 'reputation', 'limits', 'new', 'name'] as const
const TONES: Readonly<Record<string, Tone>> = { active: 'good', suspended: 'bad', closed: 'plain' }

export default function AccountsPage() {
  const [{ by: given }, setFilters] = useFilters(['by'] as const)
  const by = ORDERS.find((order) => order === given) ?? 'name'
  const [asked, setAsked] = useState<Account | null>(null)
  const read = useList(
    ['operator', 'accounts', by],
    (api, cursor) => api.GET('/v1/operator/accounts', { params: { query: { by, ...(cursor === undefined ? {} : { cursor }) } } }),
    (page) => page.accounts,
    { keep: true },
  )
  const close = () => setAsked(null)
  return (
    <>
      <PageHeader title={text.title} about={text.about} />
      <Stack>
        <SegmentedControl
          aria-label={text.order} value={by} onChange={(order) => setFilters({ by: order === 'name' ? undefined : order })}
          data={ORDERS.map((value) => ({ value, label: text.orders[value] }))} style={{ flexWrap: 'wrap' }}
        />
        <Loaded query={read} isEmpty={() => read.items.length === 0} empty={<Empty title={text.none}>{text.noneNext}</Empty>}>
          {() => (
            <>
              <Found accounts={read.items} ask={setAsked} />
              {read.hasNextPage && <Button variant="default" loading={read.isFetchingNextPage} onClick={() => void read.fetchNextPage()}>{shared.more}</Button>}
            </>
          )}
        </Loaded>
      </Stack>
      {asked !== null && (asked.state === 'suspended' ? <Resume account={asked} onClose={close} /> : <Suspend account={asked} onClose={close} />)}
    </>
  )
}

function Found({ accounts, ask }: { readonly accounts: readonly Account[]; readonly ask: (account: Account) => void }) {
  const names = [text.name, text.state, text.accepted, text.delivered, text.bounced, text.failed, text.erased, text.credits, text.limit, text.created]
  return (
    <WideTable label={text.title} minWidth={1040}>
      <Table.Thead><Table.Tr>{names.map((name) => <Table.Th key={name}>{name}</Table.Th>)}</Table.Tr></Table.Thead>
      <Table.Tbody>
        {accounts.map((account) => (
          <Table.Tr key={account.id}>
            <Table.Td>
              <Stack gap={4}>
                <PageLink to={['accounts', account.id]} fz="sm" className={classes.break ?? ''}>{account.name}</PageLink>
                <Group gap="xs">
                  <Actions account={account} ask={ask} />
                  <Impersonate account={account} />
                  <PageLink to={['queue']} search={{ account: account.id }} fz="xs">{text.queue}</PageLink>
                </Group>
              </Stack>
            </Table.Td>
            <Table.Td>
              <Stack gap={4} align="flex-start">
                <StatusBadge state={account.state} label={(text.states as Readonly<Record<string, string>>)[account.state] ?? account.state} tone={TONES[account.state] ?? 'plain'} />
                {account.warned_at !== null && <StatusBadge state="warned" label={text.warned} tone="warn" />}
                {account.suspended_reason !== null && <Text size="xs">{account.suspended_reason}</Text>}
              </Stack>
            </Table.Td>
            <Table.Td>{number(account.accepted)}</Table.Td>
            <Table.Td>{number(account.delivered)}</Table.Td>
            <Table.Td>{number(account.bounced)}</Table.Td>
            <Table.Td>{number(account.failed)}</Table.Td>
            <Table.Td>{number(account.erased)}</Table.Td>
            <Table.Td>{number(account.available)}</Table.Td>
            <Table.Td>{limitText(account.nearest_limit)}</Table.Td>
            <Table.Td><Ago at={account.created_at} /></Table.Td>
          </Table.Tr>
        ))}
      </Table.Tbody>
    </WideTable>
  )
}

function limitText(limit: Account['nearest_limit']): string {
  if (limit === null) return shared.none
  return limit.days_left === null ? text.limits.warmup(limit.share) : text.limits.credits(limit.days_left)
}

function Actions({ account, ask }: { readonly account: Account; readonly ask: (account: Account) => void }) {
  if (account.state === 'closed') return null
  const shown = { variant: 'default', size: 'compact-xs', 'aria-haspopup': 'dialog', onClick: () => ask(account) } as const
  if (account.state === 'suspended') {
    return <Allowed to="operatorResumeAccount">{(control) => <Button {...control} {...shown} aria-label={text.resumeNamed(account.name)}>{text.resume}</Button>}</Allowed>
  }
  return <Allowed to="operatorSuspendAccount">{(control) => <Button {...control} {...shown} aria-label={text.suspendNamed(account.name)}>{text.suspend}</Button>}</Allowed>
}

/** Opens the account's pages as a viewer sees them. */
function Impersonate({ account }: { readonly account: Account }) {
  const navigate = useNavigate()
  const [isPending, setPending] = useState(false)
  const begin = async () => {
    setPending(true)
    try {
      await navigate({ to: `/${await impersonate(account.id)}/overview` })
    } catch (error) {
      setPending(false)
      notifyFailure(error)
    }
  }
  return (
    <Allowed to="operatorImpersonateAccount">
      {(control) => <Button {...control} variant="default" size="compact-xs" loading={isPending} aria-label={text.impersonateNamed(account.name)} onClick={() => void begin()}>{text.impersonate}</Button>}
    </Allowed>
  )
}

function Suspend({ account, onClose }: { readonly account: Account; readonly onClose: () => void }) {
  const [reason, setReason] = useState('')
  const suspend = useWrite(
    (api) => api.POST('/v1/operator/accounts/{account}/suspend', { params: { path: { account: account.id } }, body: { reason: reason.trim() } }),
    ['operator'],
  )
  return (
    <Modal opened onClose={onClose} title={text.suspendNamed(account.name)} closeButtonProps={{ 'aria-label': parts.close }}>
      <form
        onSubmit={(event) => {
          event.preventDefault()
          suspend.mutate(undefined, { onSuccess: () => { notify(text.suspended(account.name)); onClose() } })
        }}
      >
        <Stack>
          <Text size="sm">{text.suspendWhy}</Text>
          <TextInput label={shared.reason} required maxLength={200} value={reason} onChange={(event) => setReason(event.currentTarget.value)} data-autofocus autoComplete="off" />
          {suspend.error !== null && <Failure error={suspend.error} title={text.suspend} />}
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>{parts.cancel}</Button>
            <Button type="submit" color="red" loading={suspend.isPending}>{text.suspend}</Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  )
}

function Resume({ account, onClose }: { readonly account: Account; readonly onClose: () => void }) {
  const resume = useWrite((api) => api.POST('/v1/operator/accounts/{account}/resume', { params: { path: { account: account.id } } }), ['operator'])
  return (
    <Confirm
      opened title={text.resumeNamed(account.name)} action={text.resume} isPending={resume.isPending} error={resume.error} onClose={onClose}
      onConfirm={() => resume.mutate(undefined, { onSuccess: () => { notify(text.resumed(account.name)); onClose() } })}
    >
      {text.resumeWhy}
    </Confirm>
  )
}

import { Button, SegmentedControl, Stack, Table } from '@mantine/core'
import { useList } from '../../api/queries'
import { Foreign } from '../../parts/Foreign'
import { PageLink, useFilters } from '../../parts/Link'
import { PageHeader } from '../../parts/PageHeader'
import classes from '../../parts/parts.module.css'
import { Empty, Loaded } from '../../parts/States'
import { Ago } from '../../parts/Time'
import { WideTable } from '../../parts/WideTable'
import { number } from '../../words/format'
import { accounts as text, shared } from '../../words/operator'
import { AccountState, type Account } from './shared'

const ORDERS = ['name', 'volume', 'reputation', 'limits', 'new'] as const

export default function AccountsPage() {
  const [{ by: given }, setFilters] = useFilters(['by'] as const)
  const by = ORDERS.find((order) => order === given) ?? 'name'
  const read = useList(
    ['operator', 'accounts', by],
    (api, cursor) => api.GET('/v1/operator/accounts', { params: { query: { by, ...(cursor === undefined ? {} : { cursor }) } } }),
    (page) => page.accounts,
    { keep: true },
  )
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
              <Found accounts={read.items} />
              {read.hasNextPage && <Button variant="default" loading={read.isFetchingNextPage} onClick={() => void read.fetchNextPage()}>{shared.more}</Button>}
            </>
          )}
        </Loaded>
      </Stack>
    </>
  )
}

function Found({ accounts }: { readonly accounts: readonly Account[] }) {
  const names = [text.name, text.state, text.accepted, text.delivered, text.bounced, text.failed, text.erased, text.credits, text.limit, text.created]
  return (
    <WideTable label={text.title} minWidth={1040}>
      <Table.Thead><Table.Tr>{names.map((name) => <Table.Th key={name}>{name}</Table.Th>)}</Table.Tr></Table.Thead>
      <Table.Tbody>
        {accounts.map((account) => (
          <Table.Tr key={account.id}>
            <Table.Td><PageLink to={['accounts', account.id]} fz="sm"><Foreign text={account.name} /></PageLink></Table.Td>
            <Table.Td><AccountState account={account} />{account.suspended_reason !== null && <> <Foreign text={account.suspended_reason} /></>}</Table.Td>
            <Table.Td>{number(account.accepted)}</Table.Td>
            <Table.Td>{number(account.delivered)}</Table.Td>
            <Table.Td>{number(account.bounced)}</Table.Td>
            <Table.Td>{number(account.failed)}</Table.Td>
            <Table.Td>{number(account.erased)}</Table.Td>
            <Table.Td>{number(account.available)}</Table.Td>
            <Table.Td className={classes.rest ?? ''}>{limitText(account.nearest_limit)}</Table.Td>
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

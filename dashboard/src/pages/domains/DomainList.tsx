import { Button, Group, Stack, Text } from '@mantine/core'
import { useDisclosure } from '@mantine/hooks'
import { IconPlus } from '@tabler/icons-react'
import { useList } from '../../api/queries'
import { ItemList, ItemRow } from '../../parts/Items'
import { PageLink } from '../../parts/Link'
import { PageHeader } from '../../parts/PageHeader'
import { Allowed } from '../../parts/Role'
import { Empty, Loaded } from '../../parts/States'
import { StatusBadge } from '../../parts/Status'
import { Ago } from '../../parts/Time'
import { text } from '../../words/domains'
import { AddDomain } from './AddDomain'
import { stateOf } from './state'

export function DomainList() {
  const domains = useList(['domains'], (api, cursor) => api.GET('/v1/domains', { params: { query: { cursor: cursor ?? null } } }), (page) => page.domains)
  const [isAdding, adding] = useDisclosure()
  const add = (
    <Allowed to="addDomain">
      {(control) => <Button {...control} leftSection={<IconPlus size={16} />} aria-haspopup="dialog" onClick={adding.open}>{text.add}</Button>}
    </Allowed>
  )
  const isEmpty = domains.data !== undefined && domains.items.length === 0
  return (
    <>
      <PageHeader title={text.title} about={text.about} actions={isEmpty ? undefined : add} />
      <Loaded query={domains} isEmpty={() => isEmpty} empty={<Empty title={text.none} action={add}>{text.noneNext}</Empty>}>
        {() => (
          <ItemList label={text.list} hasMore={domains.hasNextPage} isLoadingMore={domains.isFetchingNextPage} loadMore={() => void domains.fetchNextPage()}>
            {domains.items.map((domain) => {
              const state = stateOf(domain)
              return (
                <ItemRow key={domain.id}>
                  <Stack gap={2} miw={0} flex="1 1 240px">
                    <PageLink to={['domains', domain.name]} fw={600}>{domain.name}</PageLink>
                    <Text size="sm" c="dimmed">
                      {domain.shared ? text.sharedBrief : domain.checked_at === null ? text.neverChecked : <>{text.checked} <Ago at={domain.checked_at} /></>}
                      {domain.dns_host !== null && ` · ${text.hostedBy(domain.dns_host)}`}
                    </Text>
                  </Stack>
                  <Group gap="xs"><StatusBadge state="" label={state.label} tone={state.tone} /></Group>
                </ItemRow>
              )
            })}
          </ItemList>
        )}
      </Loaded>
      <AddDomain opened={isAdding} onClose={adding.close} />
    </>
  )
}

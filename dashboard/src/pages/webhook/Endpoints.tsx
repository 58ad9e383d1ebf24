/** The account's endpoints, and a new one. */
import { Button, Group, Modal, Stack, Text } from '@mantine/core'
import { IconPlus } from '@tabler/icons-react'
import { useState } from 'react'
import { useRead, useWrite } from '../../api/queries'
import { SecretOnce } from '../../parts/Copy'
import { ItemList, ItemRow } from '../../parts/Items'
import { PageLink, useGo } from '../../parts/Link'
import { PageHeader } from '../../parts/PageHeader'
import classes from '../../parts/parts.module.css'
import { Allowed } from '../../parts/Role'
import { Empty, Loaded } from '../../parts/States'
import { StatusBadge } from '../../parts/Status'
import { text } from '../../words/endpoints'
import { text as shared } from '../../words/parts'
import { EndpointForm, type Endpoint, type Wish } from './EndpointForm'
import { ENDPOINT_TYPES } from './log'

const TONES = { new: 'plain', answering: 'good', failing: 'bad' } as const

export default function EndpointsPage() {
  const [isAdding, setAdding] = useState(false)
  const read = useRead(['endpoints'], (api) => api.GET('/v1/endpoints'))
  const actions = (
    <Allowed to="createEndpoint">
      {(control) => <Button {...control} leftSection={<IconPlus size={16} />} aria-haspopup="dialog" onClick={() => setAdding(true)}>{text.add}</Button>}
    </Allowed>
  )
  return (
    <>
      <PageHeader title={text.title} about={text.about} actions={actions} />
      <Loaded query={read} isEmpty={({ endpoints }) => endpoints.length === 0} empty={<Empty title={text.none}>{text.noneNext}</Empty>}>
        {({ endpoints }) => (
          <ItemList label={text.list}>
            {endpoints.map((endpoint) => <Row key={endpoint.id} endpoint={endpoint} />)}
          </ItemList>
        )}
      </Loaded>
      {isAdding && <NewEndpoint onClose={() => setAdding(false)} />}
    </>
  )
}

function Row({ endpoint: { id, url, types, state, enabled } }: { readonly endpoint: Endpoint }) {
  return (
    <ItemRow faded={!enabled}>
      <Stack gap={2} miw={0} flex="1 1 260px">
        <PageLink to={['endpoints', id]} fw={600} className={classes.break}>{url}</PageLink>
        <Text size="sm" c="dimmed">{types.length === ENDPOINT_TYPES.length ? text.allEvents : text.someEvents(types.length)}</Text>
      </Stack>
      <Group gap="xs">
        {!enabled && <StatusBadge state="disabled" label={text.disabled} />}
        <StatusBadge state={state} label={text.states[state]} tone={TONES[state]} />
      </Group>
    </ItemRow>
  )
}

function NewEndpoint({ onClose }: { readonly onClose: () => void }) {
  const go = useGo()
  const create = useWrite((api, body: Wish) => api.POST('/v1/endpoints', { body }), ['endpoints'])
  const made = create.data
  return (
    <Modal opened onClose={onClose} size="lg" title={text.add} closeOnClickOutside={made === undefined} closeButtonProps={{ 'aria-label': shared.close }}>
      {made === undefined
        ? <EndpointForm endpoint={null} save={(wish) => create.mutate(wish)} isPending={create.isPending} error={create.error} />
        : <SecretOnce secrets={[{ name: text.secret, value: made.secret }]} onStored={() => go(['endpoints', made.endpoint.id])} />}
    </Modal>
  )
}

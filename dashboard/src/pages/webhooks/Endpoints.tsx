/** The account's endpoints besides its webhook, and a new one. */
import { Button, Group, Modal, Stack, Text, Title } from '@mantine/core'
import { IconPlus } from '@tabler/icons-react'
import { useState } from 'react'
import { useRead, useWrite } from '../../api/queries'
import { SecretOnce } from '../../parts/Copy'
import { ItemList, ItemRow } from '../../parts/Items'
import { PageLink, useGo } from '../../parts/Link'
import classes from '../../parts/parts.module.css'
import { Allowed } from '../../parts/Role'
import { Empty, Loaded } from '../../parts/States'
import { StatusBadge } from '../../parts/Status'
import { text as shared } from '../../words/parts'
import { text } from '../../words/webhooks'
import { EndpointForm, type Endpoint, type Wish } from './EndpointForm'
import { ENDPOINT_TYPES, placeOf } from './log'

const TONES = { new: 'plain', answering: 'good', failing: 'bad' } as const

export function Endpoints() {
  const [isAdding, setAdding] = useState(false)
  const read = useRead(['endpoints'], (api) => api.GET('/v1/endpoints'))
  return (
    <Stack gap="sm" component="section" aria-label={text.endpoints}>
      <Group justify="space-between">
        <Title order={2} size="h4">{text.endpoints}</Title>
        <Allowed to="createEndpoint">
          {(control) => <Button {...control} variant="default" size="xs" leftSection={<IconPlus size={16} />} aria-haspopup="dialog" onClick={() => setAdding(true)}>{text.add}</Button>}
        </Allowed>
      </Group>
      <Text size="sm" c="dimmed">{text.endpointsAbout}</Text>
      <Loaded query={read} isEmpty={({ endpoints }) => endpoints.length === 0} empty={<Empty title={text.noEndpoint}>{text.noEndpointNext}</Empty>}>
        {({ endpoints }) => (
          <ItemList label={text.list}>
            {endpoints.map((endpoint) => <Row key={endpoint.id} endpoint={endpoint} />)}
          </ItemList>
        )}
      </Loaded>
      {isAdding && <NewEndpoint onClose={() => setAdding(false)} />}
    </Stack>
  )
}

function Row({ endpoint: { id, url, types, state, enabled } }: { readonly endpoint: Endpoint }) {
  return (
    <ItemRow faded={!enabled}>
      <Stack gap={2} miw={0} flex="1 1 260px">
        <PageLink to={placeOf(id)} fw={600} className={classes.break}>{url}</PageLink>
        <Text size="sm" c="dimmed">{types.length === ENDPOINT_TYPES.length ? text.allEvents : text.someEvents(types.length)}</Text>
      </Stack>
      <Group gap="xs">
        {!enabled && <StatusBadge state="disabled" label={text.disabled} />}
        <StatusBadge state={state} label={text.healthStates[state]} tone={TONES[state]} />
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
        ? <EndpointForm present={null} save={(wish) => create.mutate(wish)} isPending={create.isPending} error={create.error} />
        : <SecretOnce secrets={[{ name: text.secret, value: made.secret }]} onStored={() => go(placeOf(made.endpoint.id))} />}
    </Modal>
  )
}

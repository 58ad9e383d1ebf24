/** The account's endpoints and its classic webhook, and a new endpoint. */
import { Button, Group, Modal, Stack, Text } from '@mantine/core'
import { IconPlus } from '@tabler/icons-react'
import { useState } from 'react'
import { useRead, useWrite } from '../../api/queries'
import { SecretOnce } from '../../parts/Copy'
import { Foreign } from '../../parts/Foreign'
import { ItemList, ItemRow } from '../../parts/Items'
import { PageLink, useGo } from '../../parts/Link'
import { PageHeader } from '../../parts/PageHeader'
import classes from '../../parts/parts.module.css'
import { Allowed } from '../../parts/Role'
import { Empty, Failure, Loaded } from '../../parts/States'
import { StatusBadge } from '../../parts/Status'
import { filterText, type EndpointFilters } from '../../rules/endpoint-filters'
import { text as shared } from '../../words/parts'
import { text } from '../../words/webhooks'
import { EndpointForm, UNFILTERED, type Endpoint, type Wish } from './EndpointForm'
import { ENDPOINT_TYPES, placeOf, type EndpointId } from './log'

const TONES = { new: 'plain', answering: 'good', failing: 'bad' } as const

export default function WebhooksPage() {
  const [isAdding, setAdding] = useState(false)
  const endpoints = useRead(['endpoints'], (api) => api.GET('/v1/endpoints'))
  const classic = useRead(['webhook'], (api) => api.GET('/v1/webhook'))
  const webhook = classic.data?.webhook ?? null
  const add = (
    <Allowed to="createEndpoint">
      {(control) => <Button {...control} leftSection={<IconPlus size={16} />} aria-haspopup="dialog" onClick={() => setAdding(true)}>{text.add}</Button>}
    </Allowed>
  )
  return (
    <>
      <PageHeader title={text.title} about={text.about} actions={add} />
      {classic.error !== null && <Failure error={classic.error} />}
      <Loaded query={endpoints} isEmpty={({ endpoints: own }) => own.length === 0 && webhook === null && classic.data !== undefined} empty={<Empty title={text.noEndpoint}>{text.noEndpointNext}</Empty>}>
        {({ endpoints: own }) => (
          <ItemList label={text.list}>
            {webhook !== null && <Row id={null} of={{ ...UNFILTERED, ...webhook, types: webhook.events }} state={classic.data?.health?.state ?? 'new'} />}
            {own.map((endpoint) => <Row key={endpoint.id} id={endpoint.id} of={endpoint} state={endpoint.state} />)}
          </ItemList>
        )}
      </Loaded>
      {isAdding && <NewEndpoint onClose={() => setAdding(false)} />}
    </>
  )
}

function Row({ id, of: { url, enabled, ...filters }, state }: {
  readonly id: EndpointId
  readonly of: EndpointFilters & Pick<Endpoint, 'url' | 'enabled'>
  readonly state: keyof typeof TONES
}) {
  return (
    <ItemRow faded={!enabled}>
      <Stack gap={2} miw={0} flex="1 1 260px">
        <PageLink to={placeOf(id)} fw={600} className={classes.break}><Foreign text={url} /></PageLink>
        <Text size="sm" c="dimmed" className={classes.break}>{filterText(filters, ENDPOINT_TYPES.length)}</Text>
      </Stack>
      <Group gap="xs">
        {id === null && <StatusBadge state="classic" label={text.classic} />}
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

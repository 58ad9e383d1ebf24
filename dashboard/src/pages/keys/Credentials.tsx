import { Badge, Button, Code, Group, Modal, Stack, Text, Textarea, TextInput, Title } from '@mantine/core'
import { IconPlus } from '@tabler/icons-react'
import { useState } from 'react'
import { useList, useWrite } from '../../api/queries'
import type { components } from '../../api/schema'
import { useService } from '../../api/service'
import { Confirm } from '../../parts/Confirm'
import { SecretOnce } from '../../parts/Copy'
import { ItemList, ItemRow } from '../../parts/Items'
import { useFilters } from '../../parts/Link'
import { notify } from '../../parts/notify'
import classes from '../../parts/parts.module.css'
import { Allowed } from '../../parts/Role'
import { SmtpSettings } from '../../parts/Snippets'
import { Empty, Failure, Lines, Loaded } from '../../parts/States'
import { StatusBadge } from '../../parts/Status'
import { Ago, Countdown, useNow } from '../../parts/Time'
import { itemsOf, secretState, works } from '../../rules/secret-state'
import { list } from '../../words/format'
import { text } from '../../words/keys'
import { text as shared } from '../../words/parts'
import { About, Rotate, ShowEnded, TONES, Use } from './shared'

type Credential = components['schemas']['Credential']
type Asked = { readonly kind: 'rotate' | 'revoke' | 'settings'; readonly credential: Credential }

export function Credentials() {
  const [{ ended }, setFilters] = useFilters(['ended'] as const)
  const credentials = useList(['credentials'], (api, cursor) => api.GET('/v1/credentials', { params: { query: { cursor: cursor ?? null, limit: 100 } } }), (page) => page.credentials)
  const [isAdding, setAdding] = useState(false)
  const [asked, setAsked] = useState<Asked | null>(null)
  const now = useNow(10_000)
  const working = credentials.items.filter((credential) => works(secretState(credential, now)))
  const shown = ended === 'yes' ? credentials.items : working
  const add = (
    <Allowed to="createCredential">
      {(control) => <Button {...control} leftSection={<IconPlus size={16} />} aria-haspopup="dialog" onClick={() => setAdding(true)}>{text.newCredential}</Button>}
    </Allowed>
  )
  const close = () => setAsked(null)
  return (
    <Stack>
      <Loaded query={credentials} isEmpty={() => credentials.items.length === 0} empty={<Empty title={text.noCredentials} action={add}>{text.noCredentialsNext}</Empty>}>
        {() => (
          <>
            <Group justify="space-between">
              <ShowEnded isOn={ended === 'yes'} onChange={(isOn) => setFilters({ ended: isOn ? 'yes' : undefined })} />
              {add}
            </Group>
            <ItemList label={text.credentials} hasMore={credentials.hasNextPage} isLoadingMore={credentials.isFetchingNextPage} loadMore={() => void credentials.fetchNextPage()}>
              {shown.map((credential) => (
                <Row key={credential.id} shown={credential} now={now} isOnly={working.length === 1} ask={(kind) => setAsked({ kind, credential })} />
              ))}
            </ItemList>
          </>
        )}
      </Loaded>
      {isAdding && <NewCredential onClose={() => setAdding(false)} />}
      {asked?.kind === 'rotate' && <RotateCredential shown={asked.credential} onClose={close} />}
      {asked?.kind === 'revoke' && <RevokeCredential shown={asked.credential} onClose={close} />}
      {asked?.kind === 'settings' && (
        <Modal opened onClose={close} title={text.settingsNamed(asked.credential.name)} closeButtonProps={{ 'aria-label': shared.close }}>
          <Settings username={asked.credential.username} />
        </Modal>
      )}
    </Stack>
  )
}

function Row({ shown, now, isOnly, ask }: { readonly shown: Credential; readonly now: Date; readonly isOnly: boolean; readonly ask: (kind: Asked['kind']) => void }) {
  const state = secretState(shown, now)
  const until = shown.previous_password_until
  const overlaps = until !== null && new Date(until) > now
  const badges = (
    <>
      <StatusBadge state={state} label={text.states[state]} tone={TONES[state]} />
      {shown.is_default && <Badge variant="default" tt="none">{text.isDefault}</Badge>}
      {shown.last_used_at === null && works(state) && <Badge variant="default" tt="none">{text.neverUsed}</Badge>}
    </>
  )
  return (
    <ItemRow faded={!works(state)}>
      <About title={shown.name} badges={badges}>
        <Group gap="xs"><Code className={classes.break}>{shown.username}</Code></Group>
        <Text size="sm" c="dimmed" className={classes.break}>
          {shown.last_used_at === null ? <>{text.created} <Ago at={shown.created_at} /></> : <Use used={shown.last_used_at} address={shown.last_used_from} />}
          {shown.allowed_networks.length > 0 && ` · ${text.fromNetworks(list(shown.allowed_networks))}`}
        </Text>
        {overlaps && <Text size="sm">{text.oldPasswordEnds} <Countdown until={until} /></Text>}
        {shown.revoked_at !== null && <Text size="sm">{text.revokedAt} <Ago at={shown.revoked_at} /></Text>}
      </About>
      {works(state) && (
        <Group gap="xs">
          <Button variant="default" size="xs" aria-haspopup="dialog" onClick={() => ask('settings')} aria-label={text.settingsNamed(shown.name)}>{text.settings}</Button>
          <Allowed to="rotateCredential">
            {(control) => <Button {...control} variant="default" size="xs" aria-haspopup="dialog" onClick={() => ask('rotate')} aria-label={text.rotateNamed(shown.name)}>{text.rotate}</Button>}
          </Allowed>
          <Allowed to="revokeCredential" unless={isOnly ? text.onlyCredential : null}>
            {(control) => <Button {...control} variant="default" size="xs" aria-haspopup="dialog" onClick={() => ask('revoke')} aria-label={text.revokeNamed(shown.name)}>{text.revoke}</Button>}
          </Allowed>
        </Group>
      )}
    </ItemRow>
  )
}

function Settings({ username }: { readonly username: string }) {
  const service = useService()
  return service === null ? <Lines count={3} /> : <SmtpSettings submission={service.submission} username={username} />
}

function NewCredential({ onClose }: { readonly onClose: () => void }) {
  const [name, setName] = useState('')
  const [networks, setNetworks] = useState('')
  const create = useWrite((api) => api.POST('/v1/credentials', { body: { name: name.trim(), allowed_networks: itemsOf(networks) } }), ['credentials', 'progress'])
  const { data } = create
  return (
    <Modal opened onClose={onClose} title={text.newCredential} closeOnClickOutside={data === undefined} closeButtonProps={{ 'aria-label': shared.close }}>
      {data !== undefined ? (
        <Stack>
          <SecretOnce secrets={[{ name: text.username, value: data.credential.username }, { name: text.password, value: data.password }]} onStored={onClose} />
          <Title order={3} size="h5">{text.smtpTitle}</Title>
          <Settings username={data.credential.username} />
        </Stack>
      ) : (
        <form onSubmit={(event) => { event.preventDefault(); create.mutate() }}>
          <Stack>
            <TextInput label={text.name} description={text.nameHelp} required maxLength={200} value={name} onChange={(event) => setName(event.currentTarget.value)} data-autofocus autoComplete="off" />
            <Textarea label={text.networks} description={text.networksHelp} autosize minRows={1} maxRows={6} value={networks} onChange={(event) => setNetworks(event.currentTarget.value)} spellCheck={false} />
            {create.error !== null && <Failure error={create.error} title={text.newCredential} />}
            <Group justify="flex-end">
              <Button variant="default" onClick={onClose}>{shared.cancel}</Button>
              <Button type="submit" loading={create.isPending}>{text.create}</Button>
            </Group>
          </Stack>
        </form>
      )}
    </Modal>
  )
}

function RotateCredential({ shown, onClose }: { readonly shown: Credential; readonly onClose: () => void }) {
  const rotate = useWrite(
    (api, seconds: number) => api.POST('/v1/credentials/{id}/rotate', { params: { path: { id: shown.id } }, body: { overlap_seconds: seconds } }), ['credentials'],
  )
  const { data } = rotate
  return (
    <Rotate
      name={shown.name} why={text.rotateWhyCredential} until={data?.credential.previous_password_until ?? null} isPending={rotate.isPending} error={rotate.error}
      made={data === undefined ? null : [{ name: text.username, value: data.credential.username }, { name: text.password, value: data.password }]}
      onRotate={(seconds) => rotate.mutate(seconds)} onClose={onClose}
    />
  )
}

function RevokeCredential({ shown, onClose }: { readonly shown: Credential; readonly onClose: () => void }) {
  const revoke = useWrite((api) => api.DELETE('/v1/credentials/{id}', { params: { path: { id: shown.id } } }), ['credentials', 'keys'])
  return (
    <Confirm
      opened title={text.revokeNamed(shown.name)} action={text.revokeAction} typed={shown.username} isPending={revoke.isPending} error={revoke.error} onClose={onClose}
      onConfirm={() => revoke.mutate(undefined, { onSuccess: () => { notify(text.revoked(shown.name)); onClose() } })}
    >
      {text.revokeWhyCredential}
    </Confirm>
  )
}

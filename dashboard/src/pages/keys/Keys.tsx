import { Badge, Button, Code, Group, Stack, Text, TextInput } from '@mantine/core'
import { IconPlus, IconSearch } from '@tabler/icons-react'
import { useEffect, useState } from 'react'
import { useList, useWrite } from '../../api/queries'
import type { components } from '../../api/schema'
import { Confirm } from '../../parts/Confirm'
import { ItemList, ItemRow } from '../../parts/Items'
import { useFilters } from '../../parts/Link'
import { notify } from '../../parts/notify'
import classes from '../../parts/parts.module.css'
import { Allowed } from '../../parts/Role'
import { Empty, Loaded } from '../../parts/States'
import { StatusBadge } from '../../parts/Status'
import { Ago, Countdown, Moment, useNow } from '../../parts/Time'
import { secretState, works } from '../../rules/secret-state'
import { list } from '../../words/format'
import { text } from '../../words/keys'
import { NewKey } from './NewKey'
import { About, Rotate, ShowEnded, TONES, Use } from './shared'

type Key = components['schemas']['Key']

export function Keys() {
  const [{ ended }, setFilters] = useFilters(['ended'] as const)
  const [find, setFind] = useState('')
  const keys = useList(['keys'], (api, cursor) => api.GET('/v1/keys', { params: { query: { cursor: cursor ?? null, limit: 100 } } }), (page) => page.keys)
  const [isAdding, setAdding] = useState(false)
  const [rotated, setRotated] = useState<Key | null>(null)
  const [revoked, setRevoked] = useState<Key | null>(null)
  const now = useNow(10_000)
  const shown = keys.items.filter((key) => (ended === 'yes' || works(secretState(key, now))) && isNamed(key, find))
  const { hasNextPage, isFetchingNextPage, fetchNextPage } = keys
  // A search is for all keys of the account, which are at most some thousands.
  useEffect(() => {
    if (find !== '' && hasNextPage && !isFetchingNextPage) void fetchNextPage()
  }, [find, hasNextPage, isFetchingNextPage, fetchNextPage])
  const add = (
    <Allowed to="createKey">
      {(control) => <Button {...control} leftSection={<IconPlus size={16} />} aria-haspopup="dialog" onClick={() => setAdding(true)}>{text.newKey}</Button>}
    </Allowed>
  )
  return (
    <Stack>
      <Loaded query={keys} isEmpty={() => keys.items.length === 0} empty={<Empty title={text.noKeys} action={add}>{text.noKeysNext}</Empty>}>
        {() => (
          <>
            <Group justify="space-between">
              <TextInput
                type="search" aria-label={text.find} placeholder={text.findPlaceholder} leftSection={<IconSearch size={16} />} flex="1 1 220px" maw={360} maxLength={200}
                value={find} onChange={(event) => setFind(event.currentTarget.value)} autoComplete="off" spellCheck={false}
              />
              <ShowEnded isOn={ended === 'yes'} onChange={(isOn) => setFilters({ ended: isOn ? 'yes' : undefined })} />
              {add}
            </Group>
            {shown.length === 0 ? <Empty title={find === '' ? text.noWorkingKeys : text.noMatch}>{find === '' ? text.noKeysNext : text.noMatchNext}</Empty> : (
              <ItemList label={text.keys} hasMore={keys.hasNextPage} isLoadingMore={keys.isFetchingNextPage} loadMore={() => void keys.fetchNextPage()}>
                {shown.map((key) => <Row key={key.id} shown={key} now={now} onRotate={() => setRotated(key)} onRevoke={() => setRevoked(key)} />)}
              </ItemList>
            )}
          </>
        )}
      </Loaded>
      {isAdding && <NewKey onClose={() => setAdding(false)} />}
      {rotated !== null && <RotateKey shown={rotated} onClose={() => setRotated(null)} />}
      {revoked !== null && <RevokeKey shown={revoked} onClose={() => setRevoked(null)} />}
    </Stack>
  )
}

function isNamed({ name, hint, created_by: author }: Key, find: string): boolean {
  return [name, hint, author ?? ''].some((part) => part.toLowerCase().includes(find.trim().toLowerCase()))
}

function Row({ shown, now, onRotate, onRevoke }: { readonly shown: Key; readonly now: Date; readonly onRotate: () => void; readonly onRevoke: () => void }) {
  const state = secretState(shown, now)
  const badges = (
    <>
      <StatusBadge state={state} label={text.states[state]} tone={TONES[state]} />
      {shown.mode === 'test' && <Badge variant="default" tt="none">{text.test}</Badge>}
      {shown.last_used_at === null && works(state) && <Badge variant="default" tt="none">{text.neverUsed}</Badge>}
    </>
  )
  return (
    <ItemRow faded={!works(state)}>
      <About title={shown.name} badges={badges}>
        <Group gap="xs"><Code>{shown.hint}</Code><Text size="sm" c="dimmed">{list(shown.scopes.map((scope) => text.scopeNames[scope]))}</Text></Group>
        <Text size="sm" c="dimmed" className={classes.break}>
          {text.created} <Ago at={shown.created_at} /> {text.createdBy(shown.created_by)}
          {shown.last_used_at !== null && <> · <Use used={shown.last_used_at} address={shown.last_used_from} /></>}
          {(shown.sender_domains ?? []).length > 0 && ` · ${text.boundTo(list(shown.sender_domains ?? []))}`}
          {shown.allowed_networks.length > 0 && ` · ${text.fromNetworks(list(shown.allowed_networks))}`}
        </Text>
        <Ends shown={shown} state={state} />
      </About>
      {works(state) && (
        <Group gap="xs">
          <Allowed to="rotateKey" unless={state === 'rotated' ? text.alreadyRotated : null}>
            {(control) => <Button {...control} variant="default" size="xs" aria-haspopup="dialog" onClick={onRotate} aria-label={text.rotateNamed(shown.name)}>{text.rotate}</Button>}
          </Allowed>
          <Allowed to="revokeKey">
            {(control) => <Button {...control} variant="default" size="xs" aria-haspopup="dialog" onClick={onRevoke} aria-label={text.revokeNamed(shown.name)}>{text.revoke}</Button>}
          </Allowed>
        </Group>
      )}
    </ItemRow>
  )
}

function Ends({ shown, state }: { readonly shown: Key; readonly state: ReturnType<typeof secretState> }) {
  if (shown.revoked_at !== null) return <Text size="sm">{text.revokedAt} <Ago at={shown.revoked_at} /></Text>
  if (shown.expires_at === null) return null
  if (state === 'rotated') return <Text size="sm">{text.ends} <Countdown until={shown.expires_at} /></Text>
  return <Text size="sm">{state === 'expired' ? text.expiredAt : text.expiresAt} <Moment at={shown.expires_at} /></Text>
}

function RotateKey({ shown, onClose }: { readonly shown: Key; readonly onClose: () => void }) {
  const rotate = useWrite(
    (api, seconds: number) => api.POST('/v1/keys/{id}/rotate', { params: { path: { id: shown.id } }, body: { overlap_seconds: seconds } }), ['keys'],
  )
  const { data } = rotate
  return (
    <Rotate
      name={shown.name} why={text.rotateWhyKey} made={data === undefined ? null : [{ name: text.keySecret, value: data.secret }]}
      until={data?.previous.expires_at ?? null} isPending={rotate.isPending} error={rotate.error} onRotate={(seconds) => rotate.mutate(seconds)} onClose={onClose}
    />
  )
}

function RevokeKey({ shown, onClose }: { readonly shown: Key; readonly onClose: () => void }) {
  const revoke = useWrite((api) => api.DELETE('/v1/keys/{id}', { params: { path: { id: shown.id } } }), ['keys'])
  return (
    <Confirm
      opened title={text.revokeNamed(shown.name)} action={text.revokeAction} isPending={revoke.isPending} error={revoke.error} onClose={onClose}
      onConfirm={() => revoke.mutate(undefined, { onSuccess: () => { notify(text.revoked(shown.name)); onClose() } })}
    >
      {text.revokeWhyKey}
    </Confirm>
  )
}

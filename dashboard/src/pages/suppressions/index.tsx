/** Addresses that get no mail: search, add, remove with a reason, erase, import, export. */
import { ActionIcon, Button, Group, Menu, Modal, NativeSelect, Stack, Text, TextInput } from '@mantine/core'
import { IconDots, IconSearch } from '@tabler/icons-react'
import { useState } from 'react'
import { download } from '../../api/client'
import { useList, useWrite } from '../../api/queries'
import type { components } from '../../api/schema'
import { ExportButton } from '../../parts/ExportButton'
import { Foreign } from '../../parts/Foreign'
import { useFilters } from '../../parts/Link'
import { notify } from '../../parts/notify'
import { PageHeader } from '../../parts/PageHeader'
import { Allowed } from '../../parts/Role'
import { Empty, Failure, Loaded } from '../../parts/States'
import { StatusBadge, type Tone } from '../../parts/Status'
import { Ago } from '../../parts/Time'
import { VirtualList } from '../../parts/VirtualList'
import { text as shared } from '../../words/parts'
import { text } from '../../words/suppressions'
import { EraseDialog } from './EraseDialog'
import { ImportDialog } from './ImportDialog'
import classes from './suppressions.module.css'

type Suppression = components['schemas']['Suppression']

const REASONS = ['bounce', 'complaint', 'manual'] as const
const TONES: Readonly<Record<Suppression['reason'], Tone>> = { bounce: 'bad', complaint: 'warn', manual: 'plain' }
const ROW = 72
const emailOf = ({ email }: Suppression): string => email

export default function SuppressionsPage() {
  const [filters, change] = useFilters(['search', 'reason'] as const)
  const reason = REASONS.find((name) => name === filters.reason)
  // The service takes a search or a reason.
  const query = filters.search !== undefined ? { search: filters.search } : reason !== undefined ? { reason } : {}
  const [dialog, setDialog] = useState<'add' | 'erase' | 'import' | Suppression | null>(null)
  const found = useList(
    ['suppressions', query],
    (api, cursor) => api.GET('/v1/suppressions', { params: { query: { ...query, limit: 100, cursor } as never } }),
    (page) => page.suppressions,
  )
  const close = () => setDialog(null)
  return (
    <>
      <PageHeader
        title={text.title}
        about={text.about}
        actions={
          <>
            <ExportButton operation="exportSuppressions" save={() => download('/v1/suppressions/export', 'suppressions.csv')} />
            <Allowed to="importSuppressions">{(control) => <Button {...control} variant="default" aria-haspopup="dialog" onClick={() => setDialog('import')}>{text.import}</Button>}</Allowed>
            <Allowed to="addSuppression">{(control) => <Button {...control} aria-haspopup="dialog" onClick={() => setDialog('add')}>{text.add}</Button>}</Allowed>
            <Menu position="bottom-end">
              <Menu.Target><ActionIcon variant="default" size="lg" aria-label={text.more}><IconDots size={18} /></ActionIcon></Menu.Target>
              <Menu.Dropdown>
                <Allowed to="createErasure">{(control) => <Menu.Item {...control} color="red" onClick={() => setDialog('erase')}>{text.eraseMenu}</Menu.Item>}</Allowed>
              </Menu.Dropdown>
            </Menu>
          </>
        }
      />
      <Stack>
        <SearchBar key={filters.search ?? ''} search={filters.search} reason={reason} change={change} />
        <Loaded
          query={found}
          isEmpty={() => found.items.length === 0 && !found.hasNextPage}
          empty={Object.keys(query).length > 0 ? <Empty title={text.nothing}>{text.nothingNext}</Empty> : <Empty title={text.none}>{text.noneNext}</Empty>}
        >
          {() => (
            <VirtualList
              items={found.items}
              keyOf={emailOf}
              row={(item) => <Row item={item} remove={() => setDialog(item)} />}
              rowHeight={ROW}
              height="max(300px, calc(100dvh - 320px))"
              label={text.list}
              hasMore={found.hasNextPage}
              isLoadingMore={found.isFetchingNextPage}
              loadMore={() => void found.fetchNextPage()}
            />
          )}
        </Loaded>
      </Stack>
      <Modal opened={dialog === 'add'} onClose={close} title={text.addTitle} closeButtonProps={{ 'aria-label': shared.close }}><AddForm done={close} /></Modal>
      <Modal opened={dialog !== null && typeof dialog === 'object'} onClose={close} title={text.removeTitle} closeButtonProps={{ 'aria-label': shared.close }}>
        {dialog !== null && typeof dialog === 'object' && <RemoveForm email={dialog.email} done={close} />}
      </Modal>
      {dialog === 'erase' && <EraseDialog close={close} />}
      <ImportDialog opened={dialog === 'import'} close={close} />
    </>
  )
}

function SearchBar({ search, reason, change }: {
  readonly search: string | undefined
  readonly reason: string | undefined
  readonly change: (changed: { readonly search?: string | undefined; readonly reason?: string | undefined }) => void
}) {
  const [typed, setTyped] = useState(search ?? '')
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault()
        change({ search: typed.trim() === '' ? undefined : typed.trim() })
      }}
    >
      <Group gap="xs" align="flex-end">
        <TextInput
          flex="1 1 240px"
          type="search"
          label={text.search}
          placeholder={text.searchPlaceholder}
          leftSection={<IconSearch size={16} />}
          value={typed}
          onChange={(event) => setTyped(event.currentTarget.value)}
          maxLength={320}
          autoComplete="off"
          spellCheck={false}
        />
        <Button type="submit" variant="default">{text.find}</Button>
        <NativeSelect
          label={text.reason}
          title={search === undefined ? text.reason : text.reasonWhy}
          disabled={search !== undefined}
          value={search === undefined ? (reason ?? '') : ''}
          onChange={(event) => change({ reason: event.currentTarget.value === '' ? undefined : event.currentTarget.value })}
          data={[{ value: '', label: text.reasonAny }, ...REASONS.map((name) => ({ value: name as string, label: text.reasons[name] }))]}
        />
      </Group>
    </form>
  )
}

function Row({ item, remove }: { readonly item: Suppression; readonly remove: () => void }) {
  const why = [item.note, item.added_by === null ? null : text.addedBy(item.added_by), item.smtp_code === null ? null : String(item.smtp_code), item.smtp_response]
    .filter((part) => part !== null && part !== undefined && part !== '').join(' · ')
  return (
    <div className={classes.row}>
      <span className={classes.email}><Foreign text={item.email} /></span>
      <span className={classes.reason}><StatusBadge state={item.reason} label={text.reasons[item.reason]} tone={TONES[item.reason]} /></span>
      <span className={classes.why}><Foreign text={why} /></span>
      <span className={classes.when}><Ago at={item.at} /></span>
      <span className={classes.action}>
        <Allowed to="removeSuppression" position="left">
          {(control) => <Button {...control} size="compact-sm" variant="default" aria-haspopup="dialog" aria-label={text.removeNamed(item.email)} onClick={remove}>{text.remove}</Button>}
        </Allowed>
      </span>
    </div>
  )
}

function AddForm({ done }: { readonly done: () => void }) {
  const [email, setEmail] = useState('')
  const [note, setNote] = useState('')
  const add = useWrite((api, given: { readonly email: string; readonly note: string | null }) => api.POST('/v1/suppressions', { body: given }), ['suppressions'])
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault()
        add.mutate({ email: email.trim(), note: note.trim() === '' ? null : note.trim() }, {
          onSuccess: ({ suppression }) => {
            notify(text.added(suppression.email))
            done()
          },
        })
      }}
    >
      <Stack>
        <TextInput label={text.email} required maxLength={1024} value={email} onChange={(event) => setEmail(event.currentTarget.value)} autoComplete="off" data-autofocus />
        <TextInput label={text.note} placeholder={text.notePlaceholder} maxLength={200} value={note} onChange={(event) => setNote(event.currentTarget.value)} />
        {add.error !== null && <Failure error={add.error} />}
        <Group justify="flex-end"><Button type="submit" loading={add.isPending}>{text.add}</Button></Group>
      </Stack>
    </form>
  )
}

function RemoveForm({ email, done }: { readonly email: string; readonly done: () => void }) {
  const [reason, setReason] = useState('')
  const remove = useWrite(
    (api, why: string) => api.DELETE('/v1/suppressions/{email}', { params: { path: { email }, query: { reason: why } } }),
    ['suppressions', 'message'],
  )
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault()
        remove.mutate(reason.trim(), {
          onSuccess: () => {
            notify(text.removed(email))
            done()
          },
        })
      }}
    >
      <Stack>
        <Text size="sm" className={classes.break}>{text.removeWhat(email)}</Text>
        <TextInput label={text.removeReason} description={text.removeReasonWhy} required maxLength={200} value={reason} onChange={(event) => setReason(event.currentTarget.value)} data-autofocus />
        {remove.error !== null && <Failure error={remove.error} />}
        <Group justify="flex-end"><Button type="submit" color="red" disabled={reason.trim() === ''} loading={remove.isPending}>{text.remove}</Button></Group>
      </Stack>
    </form>
  )
}

import { Button, Group, List, Modal, Stack, Text, TextInput } from '@mantine/core'
import { useState } from 'react'
import { useRead, useWrite } from '../../api/queries'
import type { components } from '../../api/schema'
import { Chart, type Series } from '../../parts/Chart'
import { Confirm } from '../../parts/Confirm'
import { ItemList, ItemRow } from '../../parts/Items'
import { PageLink, useParam } from '../../parts/Link'
import { notify, notifyFailure } from '../../parts/notify'
import { PageHeader } from '../../parts/PageHeader'
import classes from '../../parts/parts.module.css'
import { Allowed } from '../../parts/Role'
import { Section } from '../../parts/Section'
import { Failure, Loaded } from '../../parts/States'
import { Ago, Moment } from '../../parts/Time'
import { ratePlots } from '../../rules/operator-plots'
import { moment, rate } from '../../words/format'
import { lanes as text, shared } from '../../words/operator'
import { text as parts } from '../../words/parts'
import { LaneTable } from './LaneTable'

type Detail = components['schemas']['OperatorLaneDetail']
type LimitChange = components['schemas']['OperatorLimitChange']

const ASK_MS = 10_000
const LISTED = 20
const SERIES: readonly Series[] = [{ name: 'rate', label: text.learnedRate, tone: 'good' }, { name: 'refused', label: text.refused, tone: 'bad' }]
// An operator's own changes are reversed with other controls.
const NOT_UNDONE: readonly string[] = ['undone', 'pinned', 'unpinned']

export default function LanePage() {
  const lane = useParam('lane')
  const read = useRead(['operator', 'lane', lane], (api) => api.GET('/v1/operator/lanes/{lane}', { params: { path: { lane } } }), { every: ASK_MS })
  return (
    <>
      <PageHeader title={lane} about={<PageLink to={['lanes']}>{text.back}</PageLink>} actions={read.data !== undefined && <Actions detail={read.data} />} />
      <Loaded query={read}>
        {(detail) => (
          <Stack>
            <Present detail={detail} />
            <Section title={text.learned}><LearnedLimits detail={detail} /></Section>
            {ratePlots(detail.limit_changes, moment).map(([address, rows]) => (
              <Chart key={address} label={text.plot(address)} kind="lines" series={SERIES} rows={rows} format={rate} />
            ))}
            <Section title={text.limitChanges}>
              {detail.limit_changes.length === 0 ? <Text size="sm">{text.noLimitChanges}</Text> : (
                <ItemList label={text.limitChanges}>{detail.limit_changes.slice(0, LISTED).map((change) => <LimitChangeRow key={change.id} change={change} />)}</ItemList>
              )}
            </Section>
          </Stack>
        )}
      </Loaded>
    </>
  )
}

function Present({ detail: { now } }: { readonly detail: Detail }) {
  if (now === null) return <Text>{text.quiet}</Text>
  return (
    <>
      {now.since !== null && (
        <Text className={classes.break}>{text.paused} <Ago at={now.since} />: {text.pausedWhy(now.reason ?? '')}</Text>
      )}
      <LaneTable lanes={[now]} label={text.lane} />
    </>
  )
}

function LearnedLimits({ detail }: { readonly detail: Detail }) {
  if (detail.learned_limits.length === 0) return <Text size="sm">{text.begins(rate(detail.begins_at))}</Text>
  return detail.learned_limits.map(({ address, domain, lines }) => (
    <div key={address}>
      <Text fw={600} size="sm" className={classes.break}>{domain !== null ? text.ofDomain(domain) : address === '' ? text.ofAll : text.ofAddress(address)}</Text>
      <List size="sm">{lines.map((line) => <List.Item key={line} className={classes.break ?? ''}>{line}</List.Item>)}</List>
    </div>
  ))
}

function LimitChangeRow({ change }: { readonly change: LimitChange }) {
  const [isAsked, setAsked] = useState(false)
  const undo = useWrite((api) => api.POST('/v1/operator/limit-changes/{id}/undo', { params: { path: { id: change.id } } }), ['operator'])
  return (
    <ItemRow>
      <Stack gap={2} miw={0} flex="1 1 280px">
        <Text size="sm" className={classes.break}>{change.what}</Text>
        <Text size="xs" c="dimmed" className={classes.break}><Moment at={change.at} />{change.address !== '' && ` · ${change.address}`}{change.message !== null && ` · ${change.message}`}</Text>
      </Stack>
      {!NOT_UNDONE.includes(change.kind) && (
        <Allowed to="operatorUndoLimitChange">
          {(control) => <Button {...control} variant="default" size="xs" aria-haspopup="dialog" aria-label={text.undoNamed(change.what)} onClick={() => setAsked(true)}>{text.undo}</Button>}
        </Allowed>
      )}
      <Confirm
        opened={isAsked} title={text.undoTitle} action={text.undo} isPending={undo.isPending} error={undo.error} onClose={() => setAsked(false)}
        onConfirm={() => undo.mutate(undefined, { onSuccess: () => { setAsked(false); notify(text.undone) } })}
      >
        {text.undoWhy}
      </Confirm>
    </ItemRow>
  )
}

function Actions({ detail }: { readonly detail: Detail }) {
  const { lane, now, learned_limits: learned } = detail
  const [asked, setAsked] = useState<'pause' | 'pin' | null>(null)
  const resume = useWrite((api) => api.POST('/v1/operator/lanes/{lane}/resume', { params: { path: { lane } } }), ['operator'])
  const close = () => setAsked(null)
  return (
    <>
      <Allowed to="operatorPinLane">
        {(control) => <Button {...control} variant="default" aria-haspopup="dialog" onClick={() => setAsked('pin')}>{text.pin}</Button>}
      </Allowed>
      {now?.state === 'paused' ? (
        <Allowed to="operatorResumeLane">
          {(control) => (
            <Button {...control} loading={resume.isPending} onClick={() => resume.mutate(undefined, { onSuccess: () => notify(text.resumed(lane)), onError: notifyFailure })}>{text.resume}</Button>
          )}
        </Allowed>
      ) : (
        <Allowed to="operatorPauseLane">
          {(control) => <Button {...control} variant="default" aria-haspopup="dialog" onClick={() => setAsked('pause')}>{text.pause}</Button>}
        </Allowed>
      )}
      {asked === 'pause' && <Pause lane={lane} onClose={close} />}
      {asked === 'pin' && <Pin lane={lane} addresses={learned.filter(({ domain }) => domain === null).map(({ address }) => address)} onClose={close} />}
    </>
  )
}

/** Pins the lane's rate, or unpins it. */
function Pin({ lane, addresses, onClose }: { readonly lane: string; readonly addresses: readonly string[]; readonly onClose: () => void }) {
  const [perSecond, setPerSecond] = useState('')
  const [address, setAddress] = useState(addresses[0] ?? '')
  const pin = useWrite(
    (api, per_second: number | null) => api.POST('/v1/operator/lanes/{lane}/pin', { params: { path: { lane } }, body: { per_second, address: address.trim() } }),
    ['operator'],
  )
  const send = (per_second: number | null) => pin.mutate(per_second, {
    onSuccess: () => { notify(per_second === null ? text.unpinned(lane) : text.pinDone(lane, rate(per_second))); onClose() },
  })
  return (
    <Modal opened onClose={onClose} title={text.pinTitle(lane)} closeButtonProps={{ 'aria-label': parts.close }}>
      <form onSubmit={(event) => { event.preventDefault(); send(Number(perSecond)) }}>
        <Stack>
          <Text size="sm">{text.pinWhy}</Text>
          <TextInput label={text.pinRate} type="number" min={0.001} step="any" required value={perSecond} onChange={(event) => setPerSecond(event.currentTarget.value)} data-autofocus autoComplete="off" />
          <TextInput label={text.pinAddress} description={text.pinAddressHelp} value={address} onChange={(event) => setAddress(event.currentTarget.value)} autoComplete="off" spellCheck={false} />
          {pin.error !== null && <Failure error={pin.error} title={text.pinTitle(lane)} />}
          <Group justify="flex-end">
            <Button variant="default" onClick={() => send(null)}>{text.unpin}</Button>
            <Button type="submit" loading={pin.isPending}>{text.pin}</Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  )
}

function Pause({ lane, onClose }: { readonly lane: string; readonly onClose: () => void }) {
  const [reason, setReason] = useState('')
  const pause = useWrite((api) => api.POST('/v1/operator/lanes/{lane}/pause', { params: { path: { lane } }, body: { reason: reason.trim() } }), ['operator'])
  return (
    <Modal opened onClose={onClose} title={text.pauseTitle(lane)} closeButtonProps={{ 'aria-label': parts.close }}>
      <form
        onSubmit={(event) => {
          event.preventDefault()
          pause.mutate(undefined, { onSuccess: () => { notify(text.pausedDone(lane)); onClose() } })
        }}
      >
        <Stack>
          <Text size="sm">{text.pauseWhy}</Text>
          <TextInput label={shared.reason} description={text.reasonHelp} maxLength={200} value={reason} onChange={(event) => setReason(event.currentTarget.value)} data-autofocus autoComplete="off" />
          {pause.error !== null && <Failure error={pause.error} title={text.pauseTitle(lane)} />}
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>{parts.cancel}</Button>
            <Button type="submit" loading={pause.isPending}>{text.pause}</Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  )
}

/** An account: its limits, and changes by operators. */
import { Button, Group, List, Modal, Stack, Text, TextInput } from '@mantine/core'
import { Suspense, useState } from 'react'
import { newKey } from '../../api/new-key'
import { useRead, useWrite } from '../../api/queries'
import type { components } from '../../api/schema'
import { later } from '../../parts/later'
import { PageLink, useParam } from '../../parts/Link'
import { notify } from '../../parts/notify'
import { PageHeader } from '../../parts/PageHeader'
import classes from '../../parts/parts.module.css'
import { Allowed } from '../../parts/Role'
import { Section } from '../../parts/Section'
import { Failure, Loaded } from '../../parts/States'
import { Figure } from '../../parts/Status'
import { warmUpOf, warmUpText } from '../../rules/account-limits'
import { list, number, rate } from '../../words/format'
import { account as text, shared } from '../../words/operator'
import { text as parts } from '../../words/parts'
import own from './operator.module.css'

const SendAgain = later(() => import('./SendAgain'))

type Detail = components['schemas']['OperatorAccountDetail']
type Given = components['schemas']['LimitsRequest']

export default function AccountPage() {
  const account = useParam('id')
  const read = useRead(['operator', 'account', account], (api) => api.GET('/v1/operator/accounts/{account}', { params: { path: { account } } }))
  return (
    <>
      <PageHeader
        title={read.data?.account.name ?? account} about={<PageLink to={['accounts']}>{text.back}</PageLink>}
        actions={read.data !== undefined && <Actions detail={read.data} />}
      />
      <Loaded query={read}>
        {(detail) => (
          <Stack>
            {detail.account.suspended_reason !== null && <Text className={classes.break}>{text.suspended(detail.account.suspended_reason)}</Text>}
            <div className={own.figures}>
              <Figure name={text.credits} value={number(detail.account.available)} about={text.granted(number(detail.granted))} />
              <Figure name={text.waiting} value={number(detail.waiting)} about={<PageLink to={['queue']} search={{ account: detail.account.id }}>{text.queue}</PageLink>} />
              <Figure name={text.accepted} value={number(detail.account.accepted)} about={text.lately(number(detail.account.delivered), number(detail.account.bounced), number(detail.account.failed), number(detail.account.erased))} />
            </div>
            <Section title={text.limits}><Limits limits={detail.limits} /></Section>
            <Section title={text.domains}>
              {detail.domains.length === 0 ? <Text size="sm">{text.noDomains}</Text> : (
                <List size="sm">{detail.domains.map(({ name, verified_at }) => <List.Item key={name} className={classes.break ?? ''}>{text.domain(name, verified_at !== null)}</List.Item>)}</List>
              )}
            </Section>
            <Section title={text.users}>
              {detail.users.length === 0 ? <Text size="sm">{text.noUsers}</Text> : (
                <List size="sm">{detail.users.map(({ id, email, role }) => <List.Item key={id} className={classes.break ?? ''}><PageLink to={['users']} search={{ q: id }} underline="always">{email}</PageLink>, {role}</List.Item>)}</List>
              )}
            </Section>
          </Stack>
        )}
      </Loaded>
    </>
  )
}

function Limits({ limits }: { readonly limits: Detail['limits'] }) {
  const { own_warmup: warmUp } = limits
  return (
    <List size="sm">
      <List.Item>{text.rate(rate(limits.rate_per_second), number(limits.rate_burst), limits.own_rate_per_second !== null || limits.own_rate_burst !== null)}</List.Item>
      <List.Item>
        {warmUp === 'exempt' ? text.exempt : limits.warmup_limit === null ? text.noWarmUp : text.warmUp(number(limits.warmup_day), number(limits.warmup_used), number(limits.warmup_limit))}
      </List.Item>
      {Array.isArray(warmUp) && <List.Item className={classes.break ?? ''}>{text.ownWarmUp(list(warmUp.map(number)))}</List.Item>}
    </List>
  )
}

function Actions({ detail }: { readonly detail: Detail }) {
  const [asked, setAsked] = useState<'limits' | 'credits' | 'again' | null>(null)
  const close = () => setAsked(null)
  return (
    <>
      <Allowed to="operatorSetLimits">{(control) => <Button {...control} variant="default" aria-haspopup="dialog" onClick={() => setAsked('limits')}>{text.setLimits}</Button>}</Allowed>
      <Allowed to="operatorGrantCredits">{(control) => <Button {...control} variant="default" aria-haspopup="dialog" onClick={() => setAsked('credits')}>{text.grant}</Button>}</Allowed>
      <Allowed to="operatorCreateResend">{(control) => <Button {...control} variant="default" aria-haspopup="dialog" onClick={() => setAsked('again')}>{text.again}</Button>}</Allowed>
      {asked === 'limits' && <SetLimits detail={detail} onClose={close} />}
      {asked === 'credits' && <Grant detail={detail} onClose={close} />}
      <Suspense fallback={null}>{asked === 'again' && <SendAgain account={detail.account.id} onClose={close} />}</Suspense>
    </>
  )
}

function SetLimits({ detail: { account, limits }, onClose }: { readonly detail: Detail; readonly onClose: () => void }) {
  const [perSecond, setPerSecond] = useState(String(limits.own_rate_per_second ?? ''))
  const [burst, setBurst] = useState(String(limits.own_rate_burst ?? ''))
  const [warmUp, setWarmUp] = useState(warmUpText(limits.own_warmup))
  const set = useWrite(
    (api, body: Given) => api.POST('/v1/operator/accounts/{account}/limits', { params: { path: { account: account.id } }, body }),
    ['operator'],
  )
  const numbers = { type: 'number', min: 1, max: 1_000_000_000, description: text.empty, autoComplete: 'off' } as const
  const submit = () => set.mutate(
    { rate_per_second: perSecond === '' ? 'default' : Number(perSecond), rate_burst: burst === '' ? 'default' : Number(burst), warmup: warmUpOf(warmUp) },
    { onSuccess: () => { notify(text.limitsSet(account.name)); onClose() } },
  )
  return (
    <Modal opened onClose={onClose} title={text.limitsOf(account.name)} closeButtonProps={{ 'aria-label': parts.close }}>
      <form onSubmit={(event) => { event.preventDefault(); submit() }}>
        <Stack>
          <TextInput label={text.perSecond} {...numbers} value={perSecond} onChange={(event) => setPerSecond(event.currentTarget.value)} data-autofocus />
          <TextInput label={text.burst} {...numbers} value={burst} onChange={(event) => setBurst(event.currentTarget.value)} />
          <TextInput
            label={text.days} description={text.daysHelp} pattern=" *(exempt|[0-9]+( *, *[0-9]+)*)? *" maxLength={4_000} value={warmUp} autoComplete="off" spellCheck={false}
            onChange={(event) => setWarmUp(event.currentTarget.value)}
          />
          {set.error !== null && <Failure error={set.error} title={text.setLimits} />}
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>{parts.cancel}</Button>
            <Button type="submit" loading={set.isPending}>{text.setLimits}</Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  )
}

function Grant({ detail: { account }, onClose }: { readonly detail: Detail; readonly onClose: () => void }) {
  const [amount, setAmount] = useState('')
  const [reason, setReason] = useState('')
  // Kept while the dialog is open: a grant that is tried again after a lost answer is made once.
  const [key] = useState(newKey)
  const grant = useWrite(
    (api) => api.POST('/v1/operator/accounts/{account}/credits', { params: { path: { account: account.id }, header: { 'Idempotency-Key': key } }, body: { amount: Number(amount), reason: reason.trim() } }),
    ['operator'],
  )
  return (
    <Modal opened onClose={onClose} title={text.grantTo(account.name)} closeButtonProps={{ 'aria-label': parts.close }}>
      <form
        onSubmit={(event) => {
          event.preventDefault()
          grant.mutate(undefined, { onSuccess: (answer) => { notify(text.grantDone(account.name, number(answer.account.available))); onClose() } })
        }}
      >
        <Stack>
          <TextInput label={text.amount} description={text.amountHelp} type="number" step={1} required value={amount} onChange={(event) => setAmount(event.currentTarget.value)} data-autofocus autoComplete="off" />
          <TextInput label={shared.reason} description={text.reasonHelp} required maxLength={200} value={reason} onChange={(event) => setReason(event.currentTarget.value)} autoComplete="off" />
          {grant.error !== null && <Failure error={grant.error} title={text.grant} />}
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>{parts.cancel}</Button>
            <Button type="submit" loading={grant.isPending}>{text.grant}</Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  )
}

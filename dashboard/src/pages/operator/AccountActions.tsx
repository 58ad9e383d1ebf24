/** What an operator changes in an account. */
import { ActionIcon, Button, Group, Menu, Modal, Stack, Text, TextInput } from '@mantine/core'
import { IconDots } from '@tabler/icons-react'
import { useNavigate } from '@tanstack/react-router'
import { Suspense, useState } from 'react'
import { newKey } from '../../api/new-key'
import { useWrite } from '../../api/queries'
import type { components } from '../../api/schema'
import { impersonate } from '../../api/session'
import { Confirm } from '../../parts/Confirm'
import { later } from '../../parts/later'
import { notify, notifyFailure } from '../../parts/notify'
import { Allowed } from '../../parts/Role'
import { Failure } from '../../parts/States'
import { warmUpOf, warmUpText } from '../../rules/account-limits'
import { number } from '../../words/format'
import { account as text, shared } from '../../words/operator'
import { text as parts } from '../../words/parts'
import type { Account } from './shared'

const SendAgain = later(() => import('./SendAgain'))

type Detail = components['schemas']['OperatorAccountDetail']
type Given = components['schemas']['LimitsRequest']

export function AccountActions({ detail }: { readonly detail: Detail }) {
  const [asked, setAsked] = useState<'limits' | 'credits' | 'again' | 'suspend' | 'resume' | null>(null)
  const close = () => setAsked(null)
  const { account } = detail
  return (
    <>
      <Impersonate account={account} />
      <Allowed to="operatorSetLimits">{(control) => <Button {...control} variant="default" aria-haspopup="dialog" onClick={() => setAsked('limits')}>{text.setLimits}</Button>}</Allowed>
      <Allowed to="operatorGrantCredits">{(control) => <Button {...control} variant="default" aria-haspopup="dialog" onClick={() => setAsked('credits')}>{text.grant}</Button>}</Allowed>
      {account.state === 'suspended' && (
        <Allowed to="operatorResumeAccount">{(control) => <Button {...control} aria-haspopup="dialog" onClick={() => setAsked('resume')}>{text.resume}</Button>}</Allowed>
      )}
      <Menu position="bottom-end">
        <Menu.Target><ActionIcon variant="default" size="lg" aria-label={text.more}><IconDots size={18} /></ActionIcon></Menu.Target>
        <Menu.Dropdown>
          <Allowed to="operatorCreateResend">{(control) => <Menu.Item {...control} onClick={() => setAsked('again')}>{text.again}</Menu.Item>}</Allowed>
          {account.state === 'active' && (
            <Allowed to="operatorSuspendAccount">{(control) => <Menu.Item {...control} color="red" onClick={() => setAsked('suspend')}>{text.suspend}</Menu.Item>}</Allowed>
          )}
        </Menu.Dropdown>
      </Menu>
      {asked === 'limits' && <SetLimits detail={detail} onClose={close} />}
      {asked === 'credits' && <Grant detail={detail} onClose={close} />}
      {asked === 'suspend' && <Suspend account={account} onClose={close} />}
      {asked === 'resume' && <Resume account={account} onClose={close} />}
      <Suspense fallback={null}>{asked === 'again' && <SendAgain account={account.id} onClose={close} />}</Suspense>
    </>
  )
}

/** Opens the account's pages as a viewer sees them. */
function Impersonate({ account }: { readonly account: Account }) {
  const navigate = useNavigate()
  const [isPending, setPending] = useState(false)
  const begin = async () => {
    setPending(true)
    try {
      await navigate({ to: `/${await impersonate(account.id)}/overview` })
    } catch (error) {
      setPending(false)
      notifyFailure(error)
    }
  }
  return <Allowed to="operatorImpersonateAccount">{(control) => <Button {...control} variant="default" loading={isPending} onClick={() => void begin()}>{text.impersonate}</Button>}</Allowed>
}

function Suspend({ account, onClose }: { readonly account: Account; readonly onClose: () => void }) {
  const [reason, setReason] = useState('')
  const suspend = useWrite(
    (api) => api.POST('/v1/operator/accounts/{account}/suspend', { params: { path: { account: account.id } }, body: { reason: reason.trim() } }),
    ['operator'],
  )
  return (
    <Modal opened onClose={onClose} title={text.suspendNamed(account.name)} closeButtonProps={{ 'aria-label': parts.close }}>
      <form
        onSubmit={(event) => {
          event.preventDefault()
          suspend.mutate(undefined, { onSuccess: () => { notify(text.suspendDone(account.name)); onClose() } })
        }}
      >
        <Stack>
          <Text size="sm">{text.suspendWhy}</Text>
          <TextInput label={shared.reason} required maxLength={200} value={reason} onChange={(event) => setReason(event.currentTarget.value)} data-autofocus autoComplete="off" />
          {suspend.error !== null && <Failure error={suspend.error} title={text.suspend} />}
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>{parts.cancel}</Button>
            <Button type="submit" color="red" loading={suspend.isPending}>{text.suspend}</Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  )
}

function Resume({ account, onClose }: { readonly account: Account; readonly onClose: () => void }) {
  const resume = useWrite((api) => api.POST('/v1/operator/accounts/{account}/resume', { params: { path: { account: account.id } } }), ['operator'])
  return (
    <Confirm
      opened title={text.resumeNamed(account.name)} action={text.resume} isPending={resume.isPending} error={resume.error} onClose={onClose}
      onConfirm={() => resume.mutate(undefined, { onSuccess: () => { notify(text.resumeDone(account.name)); onClose() } })}
    >
      {text.resumeWhy}
    </Confirm>
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

import { Button, Code, Group, Modal, PasswordInput, SimpleGrid, Stack, Text, TextInput } from '@mantine/core'
import { useState, type ReactNode } from 'react'
import { encode } from 'uqr'
import { useMe, useWrite } from '../../api/queries'
import { load } from '../../api/session'
import { CopyField } from '../../parts/Copy'
import { notify } from '../../parts/notify'
import { Failure } from '../../parts/States'
import { StatusBadge } from '../../parts/Status'
import { text } from '../../words/settings'

type Dialog = 'setup' | 'codes' | 'disable'

export function SecondFactor() {
  const { user } = useMe()
  const [dialog, setDialog] = useState<Dialog | null>(null)
  const isOn = user.totp_enabled
  const close = () => setDialog(null)
  return (
    <Stack align="flex-start">
      <Group gap="xs">
        <StatusBadge state="second factor" tone={isOn ? 'good' : 'warn'} label={isOn ? text.isOn : text.isOff} />
        <Text size="sm">{isOn ? text.whyOn : text.whyOff}</Text>
      </Group>
      {isOn
        ? (
          <>
            <Text size="sm">{text.recoveryLeft(user.recovery_codes_left)}</Text>
            <Group>
              <Button variant="default" aria-haspopup="dialog" onClick={() => setDialog('codes')}>{text.newCodes}</Button>
              <Button variant="light" color="red" aria-haspopup="dialog" onClick={() => setDialog('disable')}>{text.disable}</Button>
            </Group>
          </>
        )
        : <Button aria-haspopup="dialog" onClick={() => setDialog('setup')}>{text.begin}</Button>}
      {dialog === 'setup' && <Setup onClose={close} />}
      {dialog === 'codes' && <NewCodes onClose={close} />}
      {dialog === 'disable' && <Disable onClose={close} />}
    </Stack>
  )
}

function Setup({ onClose }: { readonly onClose: () => void }) {
  const [password, setPassword] = useState('')
  const [code, setCode] = useState('')
  const begin = useWrite((api, given: string) => api.POST('/v1/auth/totp', { body: { password: given } }))
  const confirm = useWrite((api, given: string) => api.POST('/v1/auth/totp/confirm', { body: { code: given } }), ['sessions', 'progress'])
  if (confirm.data !== undefined) return <RecoveryCodes codes={confirm.data.recovery_codes} said={text.enabled} onClose={onClose} />
  if (begin.data === undefined) {
    return (
      <Ask title={text.beginTitle} action={text.next} isPending={begin.isPending} error={begin.error} onClose={onClose} onDone={() => begin.mutate(password)}>
        <PasswordInput label={text.currentPassword} required data-autofocus autoComplete="current-password" value={password} onChange={(event) => setPassword(event.currentTarget.value)} />
      </Ask>
    )
  }
  return (
    <Ask title={text.beginTitle} action={text.confirm} isPending={confirm.isPending} error={confirm.error} onClose={onClose} onDone={() => confirm.mutate(code)}>
      <Text size="sm">{text.scan}</Text>
      <QrCode value={begin.data.uri} />
      <CopyField name={text.key} value={begin.data.secret} label />
      <CodeField value={code} onChange={setCode} />
    </Ask>
  )
}

function NewCodes({ onClose }: { readonly onClose: () => void }) {
  const [password, setPassword] = useState('')
  const [code, setCode] = useState('')
  const renew = useWrite((api) => api.POST('/v1/auth/recovery-codes', { body: { password, code } }))
  if (renew.data !== undefined) return <RecoveryCodes codes={renew.data.recovery_codes} onClose={onClose} />
  return (
    <Ask title={text.newCodes} action={text.newCodes} isPending={renew.isPending} error={renew.error} onClose={onClose} onDone={() => renew.mutate()}>
      <Text size="sm">{text.newCodesAbout}</Text>
      <PasswordInput label={text.currentPassword} required data-autofocus autoComplete="current-password" value={password} onChange={(event) => setPassword(event.currentTarget.value)} />
      <CodeField value={code} onChange={setCode} />
    </Ask>
  )
}

function Disable({ onClose }: { readonly onClose: () => void }) {
  const [password, setPassword] = useState('')
  const [code, setCode] = useState('')
  const disable = useWrite((api) => api.POST('/v1/auth/totp/disable', { body: { password, code } }), ['sessions', 'progress'])
  const done = () =>
    disable.mutate(undefined, {
      onSuccess: () => {
        notify(text.disabled)
        onClose()
        void load()
      },
    })
  return (
    <Ask title={text.disableTitle} action={text.disable} isPending={disable.isPending} error={disable.error} onClose={onClose} onDone={done}>
      <PasswordInput label={text.currentPassword} required data-autofocus autoComplete="current-password" value={password} onChange={(event) => setPassword(event.currentTarget.value)} />
      <CodeField value={code} onChange={setCode} />
    </Ask>
  )
}

function CodeField({ value, onChange }: { readonly value: string; readonly onChange: (code: string) => void }) {
  return (
    <TextInput
      label={text.code} required inputMode="numeric" autoComplete="one-time-code" maxLength={40}
      value={value} onChange={(event) => onChange(event.currentTarget.value.trim())}
    />
  )
}

function RecoveryCodes({ codes, said, onClose }: { readonly codes: readonly string[]; readonly said?: string; readonly onClose: () => void }) {
  const stored = () => {
    if (said !== undefined) notify(said)
    onClose()
    void load()
  }
  // Only its button closes it: the codes are shown once.
  return (
    <Modal opened onClose={stored} title={text.recoveryTitle} withCloseButton={false} closeOnClickOutside={false} closeOnEscape={false}>
      <Stack>
        <Text size="sm">{text.recoveryAbout}</Text>
        <SimpleGrid cols={2}>{codes.map((code) => <Code key={code}>{code}</Code>)}</SimpleGrid>
        <CopyField name={text.recoveryTitle} value={codes.join(' ')} />
        <Button onClick={stored}>{text.stored}</Button>
      </Stack>
    </Modal>
  )
}

function Ask({ title, action, isPending, error, children, onDone, onClose }: {
  readonly title: string
  readonly action: string
  readonly isPending: boolean
  readonly error: Error | null
  readonly children: ReactNode
  readonly onDone: () => void
  readonly onClose: () => void
}) {
  return (
    <Modal opened onClose={onClose} title={title} closeButtonProps={{ 'aria-label': text.close }}>
      <form
        onSubmit={(event) => {
          event.preventDefault()
          onDone()
        }}
      >
        <Stack>
          {children}
          {error !== null && <Failure error={error} />}
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>{text.cancel}</Button>
            <Button type="submit" loading={isPending}>{action}</Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  )
}

/** Dark on white in both themes: cameras need that. */
function QrCode({ value }: { readonly value: string }) {
  const { data, size } = encode(value, { border: 2 })
  const path = data.flatMap((row, y) => row.map((isDark, x) => (isDark ? `M${x} ${y}h1v1h-1z` : ''))).join('')
  return (
    <svg viewBox={`0 0 ${size} ${size}`} width={220} height={220} role="img" aria-label={text.qr}>
      <rect width={size} height={size} fill="#fff" />
      <path d={path} fill="#000" />
    </svg>
  )
}

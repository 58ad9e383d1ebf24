/** What keys and credentials have in common: use, state, rotation, revocation. */
import { Button, Group, Modal, Select, Stack, Switch, Text } from '@mantine/core'
import { useState, type ReactNode } from 'react'
import { SecretOnce } from '../../parts/Copy'
import classes from '../../parts/parts.module.css'
import { Failure } from '../../parts/States'
import type { Tone } from '../../parts/Status'
import { Ago, Countdown } from '../../parts/Time'
import type { SecretState } from '../../rules/secret-state'
import { text } from '../../words/keys'
import { text as shared } from '../../words/parts'

export const TONES: Readonly<Record<SecretState, Tone>> = { active: 'good', expiring: 'warn', rotated: 'busy', revoked: 'plain', expired: 'plain' }

const DAY_SECONDS = 86_400

export function Use({ used, address }: { readonly used: string | null; readonly address?: string | null | undefined }) {
  if (used === null) return <>{text.neverUsed}</>
  return <>{text.lastUsed} <Ago at={used} />{address != null && ` ${text.from(address)}`}</>
}

export function ShowEnded({ isOn, onChange }: { readonly isOn: boolean; readonly onChange: (isOn: boolean) => void }) {
  return <Switch label={text.showEnded} checked={isOn} onChange={(event) => onChange(event.currentTarget.checked)} />
}

/** A dialog that first asks for the overlap, then shows the new secret once. */
export function Rotate({ name, why, made, until, isPending, error, onRotate, onClose }: {
  readonly name: string
  readonly why: string
  readonly made: readonly { readonly name: string; readonly value: string }[] | null
  /** When the old secret ends; null if it has. */
  readonly until: string | null
  readonly isPending: boolean
  readonly error: unknown
  readonly onRotate: (overlapSeconds: number) => void
  readonly onClose: () => void
}) {
  const [overlap, setOverlap] = useState(String(DAY_SECONDS))
  return (
    <Modal opened onClose={onClose} title={text.rotateNamed(name)} closeOnClickOutside={made === null} closeButtonProps={{ 'aria-label': shared.close }}>
      {made !== null ? (
        <Stack>
          <SecretOnce secrets={made} onStored={onClose} />
          <Text size="sm">{until === null ? text.oldEnded : <>{text.oldWorks} <Countdown until={until} /></>}</Text>
        </Stack>
      ) : (
        <form onSubmit={(event) => { event.preventDefault(); onRotate(Number(overlap)) }}>
          <Stack>
            <Text size="sm">{why}</Text>
            <Select label={text.overlap} value={overlap} onChange={(chosen) => setOverlap(chosen ?? overlap)} allowDeselect={false} data={Object.entries(text.overlaps).map(([value, label]) => ({ value, label }))} />
            {error !== null && <Failure error={error} title={text.rotate} />}
            <Group justify="flex-end">
              <Button variant="default" onClick={onClose}>{shared.cancel}</Button>
              <Button type="submit" loading={isPending}>{text.rotate}</Button>
            </Group>
          </Stack>
        </form>
      )}
    </Modal>
  )
}

export function About({ title, badges, children }: { readonly title: string; readonly badges: ReactNode; readonly children: ReactNode }) {
  return (
    <Stack gap={4} miw={0} flex="1 1 280px">
      <Group gap="xs"><Text fw={600} className={classes.break}>{title}</Text>{badges}</Group>
      {children}
    </Stack>
  )
}

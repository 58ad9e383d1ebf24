/** A field for a new password that shows its limits while the user types. */
import { PasswordInput } from '@mantine/core'
import { text } from '../../words/login'

const CHARACTERS_MIN = 12
const CHARACTERS_MAX = 256

export function NewPassword({ label, value, onChange, isNew }: {
  readonly label: string
  readonly value: string
  readonly onChange: (password: string) => void
  readonly isNew: boolean
}) {
  const length = [...value].length
  const fault = !isNew || length === 0 ? null : length < CHARACTERS_MIN ? text.tooShort(length) : length > CHARACTERS_MAX ? text.tooLong : null
  return (
    <PasswordInput
      label={label}
      description={isNew ? text.newPasswordWhy : undefined}
      error={fault}
      name="new-password"
      autoComplete={isNew ? 'new-password' : 'current-password'}
      required
      withAsterisk={false}
      autoFocus
      value={value}
      onChange={(event) => onChange(event.currentTarget.value)}
    />
  )
}

/** A code of the authenticator app, or a recovery code instead. */
import { Anchor, Stack, TextInput } from '@mantine/core'
import { useState } from 'react'
import { text } from '../../words/login'

export function CodeInput({ value, onChange }: { readonly value: string; readonly onChange: (code: string) => void }) {
  const [isRecovery, setRecovery] = useState(false)
  return (
    <Stack gap="xs" align="stretch">
      <TextInput
        key={String(isRecovery)}
        label={isRecovery ? text.recovery : text.code}
        description={isRecovery ? text.recoveryWhy : text.codeWhy}
        name="code"
        autoComplete={isRecovery ? 'off' : 'one-time-code'}
        inputMode={isRecovery ? 'text' : 'numeric'}
        maxLength={isRecovery ? 40 : 8}
        required
        withAsterisk={false}
        autoFocus
        value={value}
        onChange={(event) => onChange(event.currentTarget.value.trim())}
      />
      <Anchor component="button" type="button" size="sm" ta="left" onClick={() => { setRecovery(!isRecovery); onChange('') }}>
        {isRecovery ? text.useCode : text.useRecovery}
      </Anchor>
    </Stack>
  )
}

/** Address and password, then a code where the user has a second factor. Used by the page and by the dialog over a page. */
import { Anchor, Button, Checkbox, PasswordInput, Stack, TextInput } from '@mantine/core'
import { useState, type FormEvent } from 'react'
import { signIn } from '../../api/session'
import { Failure } from '../../parts/States'
import { Refusal } from '../../rules/refusal'
import { text } from '../../words/login'
import { CodeInput } from './CodeInput'

export function SignInForm({ email: known, onDone }: {
  /** The user who was signed in or has just joined; null at the sign-in page. */
  readonly email: string | null
  readonly onDone?: () => void
}) {
  const [email, setEmail] = useState(known ?? '')
  const [password, setPassword] = useState('')
  const [remember, setRemember] = useState(true)
  const [code, setCode] = useState('')
  const [needsCode, setNeedsCode] = useState(false)
  const [error, setError] = useState<unknown>(null)
  const [isPending, setPending] = useState(false)

  async function submit(event: FormEvent): Promise<void> {
    event.preventDefault()
    setPending(true)
    setError(null)
    try {
      await signIn({ email, password, code: needsCode && code !== '' ? code : null, remember })
      onDone?.()
    } catch (refused) {
      const asksForCode = refused instanceof Refusal && refused.secondFactor
      if (asksForCode) setNeedsCode(true)
      if (!asksForCode || needsCode) setError(refused)
      setCode('')
    } finally {
      setPending(false)
    }
  }

  return (
    <form onSubmit={(event) => void submit(event)}>
      <Stack>
        {!needsCode && (
          <>
            <TextInput label={text.email} type="email" name="email" autoComplete="username" required withAsterisk={false} value={email} onChange={(event) => setEmail(event.currentTarget.value)} data-autofocus={known === null || undefined} autoFocus={known === null} />
            <PasswordInput label={text.password} name="password" autoComplete="current-password" required withAsterisk={false} value={password} onChange={(event) => setPassword(event.currentTarget.value)} data-autofocus={known !== null || undefined} autoFocus={known !== null} />
            <Checkbox label={text.remember} description={text.rememberWhy} checked={remember} onChange={(event) => setRemember(event.currentTarget.checked)} />
          </>
        )}
        {needsCode && <CodeInput value={code} onChange={setCode} />}
        {error !== null && <Failure error={error} title={text.title} />}
        <Button type="submit" loading={isPending} fullWidth>{text.signIn}</Button>
        {needsCode && <Anchor component="button" type="button" size="sm" ta="left" onClick={() => setNeedsCode(false)}>{text.back}</Anchor>}
      </Stack>
    </form>
  )
}

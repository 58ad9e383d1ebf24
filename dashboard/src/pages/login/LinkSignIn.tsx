/** Signs in with the token of the address, once; asks for a code where the user has a second factor. */
import { Anchor, Button, Stack, Text } from '@mantine/core'
import { useNavigate } from '@tanstack/react-router'
import { useEffect, useRef, useState, type FormEvent } from 'react'
import { session, signInByLink } from '../../api/session'
import { RouterLink } from '../../parts/Link'
import { Failure, Lines } from '../../parts/States'
import { Refusal } from '../../rules/refusal'
import { text } from '../../words/login'
import { Card } from './Card'
import { CodeInput } from './CodeInput'

export function LinkSignIn({ token }: { readonly token: string }) {
  const navigate = useNavigate()
  const [error, setError] = useState<unknown>(null)
  const [needsCode, setNeedsCode] = useState(false)
  const [code, setCode] = useState('')
  const isUsed = useRef(false)

  async function use(given: string | null): Promise<void> {
    setError(null)
    try {
      await signInByLink(token, given)
      const present = session.get()
      await navigate({ href: present.state === 'signed in' ? `/${present.me.account_id}` : '/', replace: true })
    } catch (refused) {
      if (refused instanceof Refusal && refused.secondFactor) setNeedsCode(true)
      if (given !== null || !(refused instanceof Refusal && refused.secondFactor)) setError(refused)
    }
  }

  useEffect(() => {
    if (isUsed.current) return
    isUsed.current = true
    void use(null)
  })

  return (
    <Card title={text.linkTitle}>
      {error === null && !needsCode && <Lines count={2} />}
      {needsCode && (
        <form onSubmit={(event: FormEvent) => { event.preventDefault(); void use(code) }}>
          <Stack>
            <CodeInput value={code} onChange={setCode} />
            <Button type="submit">{text.signIn}</Button>
          </Stack>
        </form>
      )}
      {error !== null && (
        <>
          <Failure error={error} title={text.linkFailed} />
          <Text size="sm">{text.linkWhy}</Text>
          <Anchor size="sm" renderRoot={(props) => <RouterLink {...props} to="/login" hash="" />}>{text.toSignIn}</Anchor>
        </>
      )}
    </Card>
  )
}

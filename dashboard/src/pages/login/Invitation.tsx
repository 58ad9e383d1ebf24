/** Accepts an invitation with the token of its link (`/invitation#…`). */
import { Alert, Anchor, Button, Checkbox, Stack } from '@mantine/core'
import { useNavigate } from '@tanstack/react-router'
import { useState } from 'react'
import { useWrite } from '../../api/queries'
import { RouterLink } from '../../parts/Link'
import { Failure } from '../../parts/States'
import { tokenOf } from '../../rules/address'
import { text } from '../../words/login'
import { Card } from './Card'
import { CodeInput } from './CodeInput'
import { NewPassword } from './NewPassword'
import { SignInForm } from './SignInForm'

export default function InvitationPage() {
  const navigate = useNavigate()
  const [token] = useState(() => tokenOf(location.hash)?.token ?? null)
  const [password, setPassword] = useState('')
  const [hasCode, setHasCode] = useState(false)
  const [code, setCode] = useState('')
  const accept = useWrite((api, given: { token: string; password: string; code: string | null }) =>
    api.POST('/v1/invitations/accept', { body: given }),
  )
  const joined = accept.data
  return (
    <Card
      title={joined === undefined ? text.invitationTitle : text.joined(joined.account.name)}
      about={joined === undefined ? text.invitationWhy : text.joinedWhy(joined.email)}
    >
      {token === null && <Alert color="orange" title={text.noToken}>{text.noTokenWhy}</Alert>}
      {token !== null && joined === undefined && (
        <form onSubmit={(event) => { event.preventDefault(); accept.mutate({ token, password, code: hasCode && code !== '' ? code : null }) }}>
          <Stack>
            <NewPassword label={text.invitationPassword} value={password} onChange={setPassword} isNew={!hasCode} />
            <Checkbox label={text.hasCode} checked={hasCode} onChange={(event) => setHasCode(event.currentTarget.checked)} />
            {hasCode && <CodeInput value={code} onChange={setCode} />}
            {accept.isError && <Failure error={accept.error} title={text.invitationTitle} />}
            <Button type="submit" loading={accept.isPending}>{text.accept}</Button>
          </Stack>
        </form>
      )}
      {joined !== undefined && <SignInForm email={joined.email} onDone={() => void navigate({ href: `/${joined.account.id}/start`, replace: true })} />}
      {joined === undefined && <Anchor size="sm" renderRoot={(props) => <RouterLink {...props} to="/login" />}>{text.toSignIn}</Anchor>}
    </Card>
  )
}

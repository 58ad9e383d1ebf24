/** Sets another password with the token of the link in the email (`/reset#…`). */
import { Alert, Anchor, Button, Stack } from '@mantine/core'
import { useState } from 'react'
import { useWrite } from '../../api/queries'
import { RouterLink } from '../../parts/Link'
import { Failure } from '../../parts/States'
import { tokenOf } from '../../rules/address'
import { text } from '../../words/login'
import { Card } from './Card'
import { NewPassword } from './NewPassword'

export default function ResetPage() {
  const [token] = useState(() => tokenOf(location.hash)?.token ?? null)
  const [password, setPassword] = useState('')
  const reset = useWrite((api, given: { token: string; password: string }) => api.POST('/v1/auth/reset', { body: given }))
  return (
    <Card title={reset.isSuccess ? text.reset : text.resetTitle} {...(reset.isSuccess ? { about: text.resetWhy } : {})}>
      {token === null && <Alert color="orange" title={text.noToken}>{text.noTokenWhy}</Alert>}
      {token !== null && !reset.isSuccess && (
        <form onSubmit={(event) => { event.preventDefault(); reset.mutate({ token, password }) }}>
          <Stack>
            <NewPassword label={text.newPassword} value={password} onChange={setPassword} isNew />
            {reset.isError && <Failure error={reset.error} title={text.resetTitle} />}
            <Button type="submit" loading={reset.isPending}>{text.setPassword}</Button>
          </Stack>
        </form>
      )}
      <Anchor size="sm" renderRoot={(props) => <RouterLink {...props} to="/login" />}>{text.toSignIn}</Anchor>
    </Card>
  )
}

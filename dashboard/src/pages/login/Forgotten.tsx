/** Asks for a link to set another password. */
import { Anchor, Button, Stack, Text, TextInput } from '@mantine/core'
import { useState } from 'react'
import { useWrite } from '../../api/queries'
import { RouterLink } from '../../parts/Link'
import { Failure } from '../../parts/States'
import { text } from '../../words/login'
import { Card } from './Card'

export default function ForgottenPage() {
  const [email, setEmail] = useState('')
  const request = useWrite((api, address: string) => api.POST('/v1/auth/forgot', { body: { email: address } }))
  return (
    <Card title={request.isSuccess ? text.requested : text.forgottenTitle} about={request.isSuccess ? text.requestedWhy(email) : text.forgottenWhy}>
      {!request.isSuccess && (
        <form onSubmit={(event) => { event.preventDefault(); request.mutate(email) }}>
          <Stack>
            <TextInput label={text.email} type="email" name="email" autoComplete="username" required withAsterisk={false} autoFocus value={email} onChange={(event) => setEmail(event.currentTarget.value)} />
            {request.isError && <Failure error={request.error} title={text.forgottenTitle} />}
            <Button type="submit" loading={request.isPending}>{text.requestReset}</Button>
          </Stack>
        </form>
      )}
      <Text size="sm"><Anchor inherit renderRoot={(props) => <RouterLink {...props} to="/login" />}>{text.toSignIn}</Anchor></Text>
    </Card>
  )
}

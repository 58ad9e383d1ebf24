import { Button, PasswordInput, Stack } from '@mantine/core'
import { useState } from 'react'
import { useMe, useWrite } from '../../api/queries'
import { notify } from '../../parts/notify'
import { Failure } from '../../parts/States'
import { text } from '../../words/settings'

export function Password() {
  const { user } = useMe()
  const [current, setCurrent] = useState('')
  const [chosen, setChosen] = useState('')
  const change = useWrite(
    (api, body: { readonly current_password: string; readonly new_password: string }) => api.POST('/v1/auth/password', { body }),
    ['sessions'],
  )
  const save = () =>
    change.mutate({ current_password: current, new_password: chosen }, {
      onSuccess: () => {
        setCurrent('')
        setChosen('')
        notify(text.passwordChanged)
      },
    })
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault()
        save()
      }}
    >
      <Stack maw={400}>
        {/* Password managers store the new password under this name. */}
        <input type="hidden" name="username" autoComplete="username" value={user.email} />
        <PasswordInput
          label={text.currentPassword} required autoComplete="current-password"
          value={current} onChange={(event) => setCurrent(event.currentTarget.value)}
        />
        <PasswordInput
          label={text.newPassword} description={text.newPasswordWhy} required minLength={12} autoComplete="new-password"
          value={chosen} onChange={(event) => setChosen(event.currentTarget.value)}
        />
        {change.error !== null && <Failure error={change.error} />}
        <Button type="submit" loading={change.isPending} w="fit-content">{text.changePassword}</Button>
      </Stack>
    </form>
  )
}

import { Button, Stack, TextInput } from '@mantine/core'
import { useState } from 'react'
import { useMe, useWrite } from '../../api/queries'
import { load } from '../../api/session'
import { notify } from '../../parts/notify'
import { Allowed, useMay } from '../../parts/Role'
import { Failure } from '../../parts/States'
import { text } from '../../words/settings'

export function AccountName() {
  const me = useMe()
  const present = me.accounts.find((account) => account.id === me.account_id)?.name ?? ''
  const [name, setName] = useState(present)
  const mayNot = !useMay('renameAccount')
  const rename = useWrite((api) => api.PUT('/v1/account', { body: { name: name.trim() } }), ['account'])
  const save = () =>
    rename.mutate(undefined, {
      onSuccess: (answer) => {
        setName(answer.name)
        notify(text.renamed(answer.name))
        void load()
      },
    })
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault()
        save()
      }}
    >
      <Stack maw={400} align="flex-start">
        <TextInput
          w="100%" label={text.accountName} description={text.accountNameWhy} required maxLength={200} autoComplete="off" readOnly={mayNot}
          value={name} onChange={(event) => setName(event.currentTarget.value)}
        />
        {rename.error !== null && <Failure error={rename.error} />}
        <Allowed to="renameAccount" unless={name.trim() === present ? text.nameUnchanged : null}>
          {(control) => <Button {...control} type="submit" loading={rename.isPending}>{text.rename}</Button>}
        </Allowed>
      </Stack>
    </form>
  )
}

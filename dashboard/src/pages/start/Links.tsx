/** Adding a domain, which continues on the domain's page, and steps on other pages. */
import { Button, Group, Stack, Text, TextInput } from '@mantine/core'
import { useState } from 'react'
import { useRead, useWrite } from '../../api/queries'
import { PageButton, PageLink, useGo } from '../../parts/Link'
import { Allowed, useMay } from '../../parts/Role'
import { Failure } from '../../parts/States'
import { sandboxOf } from '../../rules/sender-domain'
import { text } from '../../words/start'
import classes from './start.module.css'

const SHOWN = 3

export function AddDomain() {
  const go = useGo()
  const [name, setName] = useState('')
  const mayNot = !useMay('addDomain')
  const read = useRead(['domains', 'first'], (api) => api.GET('/v1/domains', { params: { query: { limit: 100 } } }))
  const add = useWrite((api) => api.POST('/v1/domains', { body: { name: name.trim() } }), ['domains', 'progress'])
  const sandbox = sandboxOf(read.data?.domains)
  return (
    <Stack>
      <Text size="sm">{text.domain.why}</Text>
      {sandbox !== undefined && <Text size="sm" className={classes.break}>{text.domain.sandbox(sandbox)}</Text>}
      {read.data?.domains.filter(({ shared }) => !shared).slice(0, SHOWN).map((domain) => (
        <Text key={domain.id} size="sm" className={classes.break}>
          {domain.verified ? text.domain.verified : text.domain.unverified} <PageLink to={['domains', domain.name]}>{domain.name}</PageLink>
        </Text>
      ))}
      <form onSubmit={(event) => { event.preventDefault(); add.mutate(undefined, { onSuccess: ({ domain }) => go(['domains', domain.name]) }) }}>
        <Group align="flex-end" gap="xs">
          <TextInput
            flex="1 1 220px" maw={360} label={text.domain.name} placeholder={text.domain.placeholder} required readOnly={mayNot} maxLength={253}
            autoComplete="off" autoCapitalize="none" spellCheck={false} value={name} onChange={(event) => setName(event.currentTarget.value)}
          />
          <Allowed to="addDomain">{(control) => <Button {...control} type="submit" loading={add.isPending}>{text.domain.add}</Button>}</Allowed>
        </Group>
      </form>
      {add.error !== null && <Failure error={add.error} title={text.domain.add} />}
    </Stack>
  )
}

export function SecondFactor() {
  return (
    <Stack align="flex-start">
      <Text size="sm">{text.secondFactor.why}</Text>
      <PageButton to={['settings']}>{text.secondFactor.open}</PageButton>
    </Stack>
  )
}

export function Invite() {
  const go = useGo()
  return (
    <Stack align="flex-start">
      <Text size="sm">{text.invite.why}</Text>
      <Allowed to="inviteMember">{(control) => <Button {...control} onClick={() => go(['team'])}>{text.invite.open}</Button>}</Allowed>
    </Stack>
  )
}

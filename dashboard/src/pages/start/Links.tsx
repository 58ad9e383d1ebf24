/** Steps that are done on other pages. */
import { Button, Stack, Text } from '@mantine/core'
import { useRead } from '../../api/queries'
import { PageButton, PageLink, useGo } from '../../parts/Link'
import { Allowed } from '../../parts/Role'
import { text } from '../../words/start'
import classes from './start.module.css'

const SHOWN = 3

export function AddDomain() {
  const go = useGo()
  const read = useRead(['domains', 'first'], (api) => api.GET('/v1/domains', { params: { query: { limit: 100 } } }))
  const waiting = read.data?.domains.filter(({ verified }) => !verified) ?? []
  return (
    <Stack align="flex-start">
      <Text size="sm">{text.domain.why}</Text>
      {waiting.slice(0, SHOWN).map(({ id, name }) => (
        <Text key={id} size="sm" className={classes.break}>{text.domain.unverified} <PageLink to={['domains', name]}>{name}</PageLink></Text>
      ))}
      <Allowed to="addDomain">
        {(control) => <Button {...control} variant={waiting.length > 0 ? 'default' : 'filled'} onClick={() => go(['domains'])}>{text.domain.open}</Button>}
      </Allowed>
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

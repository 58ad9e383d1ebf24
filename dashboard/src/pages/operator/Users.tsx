/** Users of any account: their logins, and how to end them. */
import { Button, Group, Stack, Text } from '@mantine/core'
import { useState } from 'react'
import { useRead, useWrite } from '../../api/queries'
import type { components } from '../../api/schema'
import { Confirm } from '../../parts/Confirm'
import { ItemList, ItemRow } from '../../parts/Items'
import { PageLink, useFilters } from '../../parts/Link'
import { notify } from '../../parts/notify'
import { PageHeader } from '../../parts/PageHeader'
import classes from '../../parts/parts.module.css'
import { Allowed } from '../../parts/Role'
import { Section } from '../../parts/Section'
import { Empty, Loaded } from '../../parts/States'
import { StatusBadge } from '../../parts/Status'
import { Ago } from '../../parts/Time'
import { users as text } from '../../words/operator'
import { SearchForm } from './shared'

type User = components['schemas']['OperatorUser']
/** A login, or all (null). */
type Asked = components['schemas']['OperatorUserSession'] | null

export default function UsersPage() {
  const [{ q }, setFilters] = useFilters(['q'] as const)
  const read = useRead(['operator', 'users', q ?? ''], (api) => api.GET('/v1/operator/users', { params: { query: q === undefined ? {} : { q } } }))
  return (
    <>
      <PageHeader title={text.title} about={text.about} />
      <Stack>
        <SearchForm
          key={q} title={text.title} label={text.named} help={text.namedHelp} maxLength={320}
          given={q ?? ''} onSearch={(typed) => setFilters({ q: typed === '' ? undefined : typed })}
        />
        <Loaded query={read} isEmpty={({ users }) => users.length === 0} empty={<Empty title={text.none}>{text.noneNext}</Empty>}>
          {({ users }) => users.map((user) => <Found key={user.id} user={user} />)}
        </Loaded>
      </Stack>
    </>
  )
}

function Found({ user }: { readonly user: User }) {
  const [asked, setAsked] = useState<Asked | undefined>(undefined)
  const end = useWrite(
    (api, session: string | null) => api.POST('/v1/operator/users/{id}/end-sessions', { params: { path: { id: user.id } }, body: { session } }),
    ['operator'],
  )
  const close = () => setAsked(undefined)
  return (
    <Section
      title={user.email}
      mark={user.sessions.length > 0 && (
        <Allowed to="operatorEndSessions">
          {(control) => <Button {...control} variant="default" size="xs" aria-haspopup="dialog" aria-label={text.endAllOf(user.email)} onClick={() => setAsked(null)}>{text.endAll}</Button>}
        </Allowed>
      )}
    >
      <Group gap="xs">
        {user.operator_since !== null && <><StatusBadge state="operator" label={text.operator} tone="busy" /><Text span size="sm">{text.since} <Ago at={user.operator_since} /></Text></>}
        <StatusBadge state="factor" label={user.has_second_factor ? text.factor : text.noFactor} tone={user.has_second_factor ? 'good' : 'plain'} />
      </Group>
      <Text size="sm" className={classes.break}>
        {user.accounts.length === 0 ? text.noAccounts : <>{text.accounts}: {user.accounts.map(({ id, name, role }, place) => <span key={id}>{place > 0 && '; '}<PageLink to={['accounts', id]} underline="always">{name}</PageLink>, {role}</span>)}</>}
      </Text>
      {user.sessions.length === 0 ? <Text size="sm">{text.noSessions}</Text> : (
        <ItemList label={text.sessions}>
          {user.sessions.map((session) => (
            <ItemRow key={session.id}>
              <Text size="sm" flex="1 1 280px" miw={0} className={classes.break}>{text.session(session.address, session.user_agent)} <Ago at={session.created_at} c="dimmed" /></Text>
              <Allowed to="operatorEndSessions">
                {(control) => <Button {...control} variant="default" size="xs" aria-haspopup="dialog" aria-label={text.endNamed(user.email, session.address)} onClick={() => setAsked(session)}>{text.end}</Button>}
              </Allowed>
            </ItemRow>
          ))}
        </ItemList>
      )}
      <Confirm
        opened={asked !== undefined} title={asked == null ? text.endAllOf(user.email) : text.endNamed(user.email, asked.address)} action={asked === null ? text.endAll : text.end}
        isPending={end.isPending} error={end.error} onClose={close}
        onConfirm={() => end.mutate(asked?.id ?? null, { onSuccess: ({ ended }) => { close(); notify(text.ended(ended)) } })}
      >
        {text.endWhy(asked === null ? user.sessions.length : 1)}
      </Confirm>
    </Section>
  )
}

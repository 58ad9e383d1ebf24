import { Alert, Button, Grid, Group, Loader, Stack, Text, Title } from '@mantine/core'
import { useRead, useWrite } from '../../api/queries'
import type { components } from '../../api/schema'
import { useService } from '../../api/service'
import { SecretOnce } from '../../parts/Copy'
import { PageLink } from '../../parts/Link'
import { Allowed, useMay } from '../../parts/Role'
import { SendSnippets, SmtpSettings } from '../../parts/Snippets'
import { Failure, Lines } from '../../parts/States'
import { senderDomain } from '../../rules/sender-domain'
import { text } from '../../words/start'

// The key may only send: a first email needs no choice.
const KEY = { name: text.key.name, mode: 'live', scopes: ['send'], credential_id: null, allowed_networks: null, sender_domains: null, expires_at: null } satisfies components['schemas']['KeyRequest']

export function MakeKey({ isMade, isWaiting, onMade }: { readonly isMade: boolean; readonly isWaiting: boolean; readonly onMade: () => void }) {
  const service = useService()
  const domains = useRead(['domains', 'first'], (api) => api.GET('/v1/domains', { params: { query: { limit: 100 } } }))
  const domain = senderDomain(domains.data?.domains) ?? 'example.com'
  return (
    <Stack>
      <Text size="sm">{text.key.why}</Text>
      <NewKey isMade={isMade} onMade={onMade} />
      <Grid gap="xl">
        <Grid.Col span={{ base: 12, md: 7 }}>
          <Title order={3} size="h6" mb={4}>{text.key.snippets}</Title>
          <Text size="sm" c="dimmed" mb="xs">{text.key.snippetsWhy}</Text>
          <SendSnippets origin={location.origin} from={`hello@${domain}`} to={`delivered@${service?.simulator_domain ?? 'simulator.invalid'}`} />
        </Grid.Col>
        <Grid.Col span={{ base: 12, md: 5 }}>
          <Title order={3} size="h6" mb="xs">{text.key.smtp}</Title>
          <Smtp />
        </Grid.Col>
      </Grid>
      {isWaiting && (
        <Alert color="indigo" role="status" data-waiting="first-request">
          <Group gap="xs"><Loader size="xs" aria-hidden="true" /><Text size="sm">{text.key.waiting}</Text></Group>
        </Alert>
      )}
    </Stack>
  )
}

function NewKey({ isMade, onMade }: { readonly isMade: boolean; readonly onMade: () => void }) {
  const create = useWrite((api) => api.POST('/v1/keys', { body: KEY }), ['keys', 'progress'])
  if (create.data !== undefined) return <SecretOnce secrets={[{ name: text.key.secret, value: create.data.secret }]} onStored={create.reset} />
  return (
    <>
      {create.error !== null && <Failure error={create.error} title={text.key.make} />}
      {isMade ? <PageLink to={['keys']} fz="sm">{text.key.open}</PageLink> : (
        <div>
          <Allowed to="createKey">
            {(control) => <Button {...control} loading={create.isPending} onClick={() => { onMade(); create.mutate() }}>{text.key.make}</Button>}
          </Allowed>
        </div>
      )}
    </>
  )
}

function Smtp() {
  const service = useService()
  const maySee = useMay('listCredentials')
  const read = useRead(['credentials', 'first'], (api) => api.GET('/v1/credentials', { params: { query: { limit: 100 } } }), { enabled: maySee })
  if (service === null || (maySee && read.isPending)) return <Lines count={3} />
  const working = read.data?.credentials.filter(({ revoked_at }) => revoked_at === null) ?? []
  const chosen = working.find(({ is_default }) => is_default) ?? working[0]
  return <SmtpSettings submission={service.submission} username={chosen?.username ?? null} />
}

import { Alert, Button, Group, Loader, Stack, Text } from '@mantine/core'
import { useRead } from '../../api/queries'
import { useService } from '../../api/service'
import { useGo } from '../../parts/Link'
import { Allowed } from '../../parts/Role'
import { SendSnippets } from '../../parts/Snippets'
import { text } from '../../words/start'

export function MakeKey({ isMade, isWaiting }: { readonly isMade: boolean; readonly isWaiting: boolean }) {
  const go = useGo()
  const service = useService()
  const domains = useRead(['domains', 'first'], (api) => api.GET('/v1/domains', { params: { query: { limit: 100 } } }))
  const domain = domains.data?.domains.find(({ verified }) => verified)?.name ?? 'example.com'
  return (
    <Stack>
      <Text size="sm">{text.key.why}</Text>
      <div>
        <Allowed to="createKey">
          {(control) => <Button {...control} variant={isMade ? 'default' : 'filled'} onClick={() => go(['keys'])}>{text.key.open}</Button>}
        </Allowed>
      </div>
      <Text size="sm">{text.key.snippets}</Text>
      <SendSnippets origin={location.origin} from={`hello@${domain}`} to={`delivered@${service?.simulator_domain ?? 'simulator.invalid'}`} />
      {isWaiting && (
        <Alert color="indigo" role="status" data-waiting="first-request">
          <Group gap="xs"><Loader size="xs" aria-hidden="true" /><Text size="sm">{text.key.waiting}</Text></Group>
        </Alert>
      )}
    </Stack>
  )
}

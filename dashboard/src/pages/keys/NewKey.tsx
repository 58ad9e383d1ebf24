import { Button, Checkbox, Group, Modal, SegmentedControl, Select, Stack, Text, Textarea, TextInput, Title } from '@mantine/core'
import { useState } from 'react'
import { useList, useRead, useWrite } from '../../api/queries'
import type { components } from '../../api/schema'
import { useService } from '../../api/service'
import { SecretOnce } from '../../parts/Copy'
import { SendSnippets } from '../../parts/Snippets'
import { Failure } from '../../parts/States'
import { itemsOf } from '../../rules/secret-state'
import { senderDomain } from '../../rules/sender-domain'
import { text } from '../../words/keys'
import { text as shared } from '../../words/parts'

const DAY_MS = 24 * 60 * 60 * 1000
const EXPIRY_DAYS = { never: null, month: 30, quarter: 90, year: 365 } as const
type Expiry = keyof typeof EXPIRY_DAYS
type Scope = components['schemas']['Key']['scopes'][number]
const SCOPES = Object.keys(text.scopeNames) as Scope[]
const IN_TESTS: readonly Scope[] = ['send', 'read']

export function NewKey({ onClose }: { readonly onClose: () => void }) {
  const [name, setName] = useState('')
  const [mode, setMode] = useState<'live' | 'test'>('live')
  const [scopes, setScopes] = useState<string[]>(['send'])
  const [credential, setCredential] = useState<string | null>(null)
  const [networks, setNetworks] = useState('')
  const [domains, setDomains] = useState('')
  const [expiry, setExpiry] = useState<Expiry>('never')
  const credentials = useList(['credentials'], (api, cursor) => api.GET('/v1/credentials', { params: { query: { cursor: cursor ?? null, limit: 100 } } }), (page) => page.credentials)
  const create = useWrite((api) => {
    const days = EXPIRY_DAYS[expiry]
    return api.POST('/v1/keys', {
      body: {
        name: name.trim(), mode, scopes: mode === 'test' ? IN_TESTS.filter((scope) => scopes.includes(scope)) : scopes as Scope[], credential_id: credential, allowed_networks: itemsOf(networks), sender_domains: domains.trim() === '' ? null : itemsOf(domains),
        expires_at: days === null ? null : new Date(Date.now() + days * DAY_MS).toISOString(),
      },
    })
  }, ['keys', 'progress'])
  const working = credentials.items.filter(({ revoked_at }) => revoked_at === null)
  return (
    <Modal opened onClose={onClose} size="lg" title={text.newKey} closeOnClickOutside={create.data === undefined} closeButtonProps={{ 'aria-label': shared.close }}>
      {create.data !== undefined ? <Made secret={create.data.secret} onStored={onClose} /> : (
        <form onSubmit={(event) => { event.preventDefault(); create.mutate() }}>
          <Stack>
            <TextInput label={text.name} description={text.nameHelp} required maxLength={200} value={name} onChange={(event) => setName(event.currentTarget.value)} data-autofocus autoComplete="off" />
            <Stack gap={4} role="group" aria-label={text.mode}>
              <Text size="sm" fw={600}>{text.mode}</Text>
              <SegmentedControl value={mode} onChange={(chosen) => setMode(chosen === 'test' ? 'test' : 'live')} data={[{ value: 'live', label: text.modes.live }, { value: 'test', label: text.modes.test }]} aria-label={text.mode} />
              <Text size="xs" c="dimmed">{text.modeHelp[mode]}</Text>
            </Stack>
            <Checkbox.Group label={text.scopes} description={text.scopesHelp} value={scopes} onChange={setScopes} withAsterisk>
              <Group mt={4}>
                {SCOPES.map((scope) => <Checkbox key={scope} value={scope} label={text.scopeNames[scope]} disabled={mode === 'test' && !IN_TESTS.includes(scope)} />)}
              </Group>
            </Checkbox.Group>
            <Select
              label={text.credential} description={text.credentialHelp} placeholder={text.defaultCredential} clearable value={credential} onChange={setCredential}
              data={working.map(({ id, name: label, username }) => ({ value: id, label: `${label} (${username})` }))}
            />
            <Textarea label={text.networks} description={text.networksHelp} autosize minRows={1} maxRows={6} value={networks} onChange={(event) => setNetworks(event.currentTarget.value)} spellCheck={false} />
            <Textarea label={text.domains} description={text.domainsHelp} autosize minRows={1} maxRows={6} value={domains} onChange={(event) => setDomains(event.currentTarget.value)} spellCheck={false} />
            <Select label={text.expires} value={expiry} onChange={(chosen) => setExpiry((chosen ?? 'never') as Expiry)} allowDeselect={false} data={Object.entries(text.expiries).map(([value, label]) => ({ value, label }))} />
            {create.error !== null && <Failure error={create.error} title={text.newKey} />}
            <Group justify="flex-end">
              <Button variant="default" onClick={onClose}>{shared.cancel}</Button>
              <Button type="submit" loading={create.isPending} disabled={scopes.length === 0}>{text.create}</Button>
            </Group>
          </Stack>
        </form>
      )}
    </Modal>
  )
}

function Made({ secret, onStored }: { readonly secret: string; readonly onStored: () => void }) {
  const service = useService()
  const domains = useRead(['domains', 'first'], (api) => api.GET('/v1/domains', { params: { query: { limit: 100 } } }), { every: false })
  const domain = senderDomain(domains.data?.domains) ?? 'example.com'
  return (
    <Stack>
      <SecretOnce secrets={[{ name: text.keySecret, value: secret }]} onStored={onStored} />
      <Title order={3} size="h5">{text.madeTitle}</Title>
      <Text size="sm">{text.madeWhy}</Text>
      <SendSnippets origin={location.origin} from={`hello@${domain}`} to={`delivered@${service?.simulator_domain ?? 'simulator.invalid'}`} />
    </Stack>
  )
}

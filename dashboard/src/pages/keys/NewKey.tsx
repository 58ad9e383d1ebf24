import { Button, Checkbox, Collapse, Group, Modal, SegmentedControl, Select, Stack, Text, Textarea, TextInput, Title } from '@mantine/core'
import { useDisclosure } from '@mantine/hooks'
import { IconChevronDown, IconChevronRight } from '@tabler/icons-react'
import { useState } from 'react'
import { useList, useRead, useWrite } from '../../api/queries'
import { useService } from '../../api/service'
import { SecretOnce } from '../../parts/Copy'
import classes from '../../parts/parts.module.css'
import { SendSnippets } from '../../parts/Snippets'
import { Failure } from '../../parts/States'
import { chosenScopes, isCustom, OF_TESTS, SCOPES, SCOPES_OF, type Preset } from '../../rules/key-presets'
import { itemsOf } from '../../rules/secret-state'
import { senderDomain } from '../../rules/sender-domain'
import { text } from '../../words/keys'
import { text as shared } from '../../words/parts'

const DAY_MS = 24 * 60 * 60 * 1000
const EXPIRY_DAYS = { never: null, month: 30, quarter: 90, year: 365 } as const
type Expiry = keyof typeof EXPIRY_DAYS
const PRESETS = ['send', 'full', 'test'] as const satisfies readonly Preset[]

export function NewKey({ onClose }: { readonly onClose: () => void }) {
  const [name, setName] = useState('')
  const [preset, setPreset] = useState<Preset>('send')
  const [scopes, setScopes] = useState<readonly string[]>(SCOPES_OF.send)
  const [isAdvanced, advanced] = useDisclosure()
  const [credential, setCredential] = useState<string | null>(null)
  const [networks, setNetworks] = useState('')
  const [domains, setDomains] = useState('')
  const [expiry, setExpiry] = useState<Expiry>('never')
  const credentials = useList(['credentials'], (api, cursor) => api.GET('/v1/credentials', { params: { query: { cursor: cursor ?? null, limit: 100 } } }), (page) => page.credentials)
  const create = useWrite((api) => {
    const days = EXPIRY_DAYS[expiry]
    return api.POST('/v1/keys', {
      body: {
        name: name.trim(), mode: preset === 'test' ? 'test' : 'live', scopes: chosenScopes(preset, scopes), credential_id: credential, allowed_networks: itemsOf(networks),
        sender_domains: domains.trim() === '' ? null : itemsOf(domains), expires_at: days === null ? null : new Date(Date.now() + days * DAY_MS).toISOString(),
      },
    })
  }, ['keys', 'progress'])
  const working = credentials.items.filter(({ revoked_at }) => revoked_at === null)
  const choose = (chosen: string) => {
    const next = PRESETS.find((each) => each === chosen) ?? 'send'
    setPreset(next)
    setScopes(SCOPES_OF[next])
  }
  return (
    <Modal opened onClose={onClose} size="lg" title={text.newKey} closeOnClickOutside={create.data === undefined} closeButtonProps={{ 'aria-label': shared.close }}>
      {create.data !== undefined ? <Made secret={create.data.secret} onStored={onClose} /> : (
        <form onSubmit={(event) => { event.preventDefault(); create.mutate() }}>
          <Stack>
            <TextInput label={text.name} description={text.nameHelp} required maxLength={200} value={name} onChange={(event) => setName(event.currentTarget.value)} data-autofocus autoComplete="off" />
            <Stack gap={4} role="group" aria-label={text.preset}>
              <Text size="sm" fw={600}>{text.preset}</Text>
              <SegmentedControl value={preset} onChange={choose} data={PRESETS.map((value) => ({ value, label: text.presets[value] }))} aria-label={text.preset} />
              <Text size="xs" c="dimmed" role="status">{isCustom(preset, scopes) ? text.presetHelp.custom : text.presetHelp[preset]}</Text>
            </Stack>
            <Button
              variant="subtle" size="compact-sm" color="gray" aria-expanded={isAdvanced} onClick={advanced.toggle} style={{ alignSelf: 'flex-start' }}
              leftSection={isAdvanced ? <IconChevronDown size={16} /> : <IconChevronRight size={16} />}
            >
              {text.advanced}
            </Button>
            <Collapse expanded={isAdvanced}>
              <Stack>
                <Checkbox.Group label={text.scopes} description={text.scopesHelp} value={[...scopes]} onChange={setScopes} withAsterisk>
                  <Group mt={4}>
                    {SCOPES.map((scope) => <Checkbox key={scope} value={scope} label={text.scopeNames[scope]} disabled={preset === 'test' && !OF_TESTS.includes(scope)} />)}
                  </Group>
                </Checkbox.Group>
                <Select
                  label={text.credential} description={text.credentialHelp} placeholder={text.defaultCredential} clearable value={credential} onChange={setCredential}
                  data={working.map(({ id, name: label, username }) => ({ value: id, label: `${label} (${username})` }))}
                />
                <Textarea label={text.networks} description={text.networksHelp} autosize minRows={1} maxRows={6} value={networks} onChange={(event) => setNetworks(event.currentTarget.value)} spellCheck={false} />
                <Textarea label={text.domains} description={text.domainsHelp} autosize minRows={1} maxRows={6} value={domains} onChange={(event) => setDomains(event.currentTarget.value)} spellCheck={false} />
                <Select label={text.expires} value={expiry} onChange={(chosen) => setExpiry((chosen ?? 'never') as Expiry)} allowDeselect={false} data={Object.entries(text.expiries).map(([value, label]) => ({ value, label }))} />
              </Stack>
            </Collapse>
            {create.error !== null && <Failure error={create.error} title={text.newKey} />}
            <Group justify="flex-end" className={classes.foot}>
              <Button variant="default" onClick={onClose}>{shared.cancel}</Button>
              <Button type="submit" loading={create.isPending} disabled={chosenScopes(preset, scopes).length === 0}>{text.create}</Button>
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

import { Button, Checkbox, Group, Select, Stack, Switch, Textarea, TextInput } from '@mantine/core'
import { useState } from 'react'
import type { components } from '../../api/schema'
import { Allowed, useMay } from '../../parts/Role'
import { Failure } from '../../parts/States'
import { itemsOf } from '../../rules/secret-state'
import { pairsOf, linesOf } from '../../rules/typed-lines'
import { text } from '../../words/endpoints'
import { text as shared } from '../../words/webhook'
import { ENDPOINT_TYPES } from './log'

export type Endpoint = components['schemas']['Endpoint']
export type Wish = components['schemas']['EndpointRequest']
type Mode = keyof typeof text.modes

/** `save` gets all fields; an endpoint that exists keeps its headers unless others are typed. */
export function EndpointForm({ endpoint, save, isPending, error }: {
  readonly endpoint: Endpoint | null
  readonly save: (wish: Wish) => void
  readonly isPending: boolean
  readonly error: unknown
}) {
  const operation = endpoint === null ? { needs: 'createEndpoint' } as const : { needs: 'saveEndpoint' } as const
  const mayNot = !useMay(operation.needs)
  const [url, setUrl] = useState(endpoint?.url ?? '')
  const [types, setTypes] = useState<string[]>(endpoint?.types ?? [...ENDPOINT_TYPES])
  const [domains, setDomains] = useState(endpoint?.sender_domains.join('\n') ?? '')
  const [tags, setTags] = useState(endpoint?.tags.join('\n') ?? '')
  const [mode, setMode] = useState<Mode>(endpoint?.mode ?? 'any')
  const [headers, setHeaders] = useState('')
  const [removes, setRemoves] = useState(false)
  const [enabled, setEnabled] = useState(endpoint?.enabled ?? true)
  const names = endpoint?.header_names ?? []
  const wish = (): Wish => ({
    url: url.trim(),
    types: types.length === ENDPOINT_TYPES.length ? null : types as Endpoint['types'],
    sender_domains: itemsOf(domains),
    tags: linesOf(tags),
    mode: mode === 'any' ? null : mode,
    headers: removes ? {} : headers.trim() === '' ? null : pairsOf(headers),
    enabled,
  })
  const lines = { autosize: true, minRows: 1, maxRows: 6, spellCheck: false, readOnly: mayNot } as const
  return (
    <form onSubmit={(event) => { event.preventDefault(); save(wish()) }}>
      <Stack>
        <TextInput type="url" label={text.url} description={text.urlHelp} placeholder={text.urlPlaceholder} required maxLength={2048} value={url} onChange={(event) => setUrl(event.currentTarget.value)} readOnly={mayNot} spellCheck={false} autoComplete="off" />
        <Checkbox.Group label={text.events} value={types} onChange={setTypes}>
          <Group mt={4}>{ENDPOINT_TYPES.map((type) => <Checkbox key={type} value={type} label={shared.eventNames[type]} disabled={mayNot} />)}</Group>
        </Checkbox.Group>
        <Textarea label={text.domains} description={text.domainsHelp} value={domains} onChange={(event) => setDomains(event.currentTarget.value)} {...lines} />
        <Textarea label={text.tags} description={text.tagsHelp} value={tags} onChange={(event) => setTags(event.currentTarget.value)} {...lines} />
        <Select label={text.mode} value={mode} allowDeselect={false} disabled={mayNot} onChange={(chosen) => setMode((chosen ?? 'any') as Mode)} data={Object.entries(text.modes).map(([value, label]) => ({ value, label }))} />
        <Textarea label={text.headers} description={names.length === 0 ? text.headersHelp : `${text.headersHelp} ${text.headersKept(names.join(', '))}`} value={headers} onChange={(event) => setHeaders(event.currentTarget.value)} {...lines} disabled={removes} />
        {names.length > 0 && <Checkbox label={text.headersRemove} checked={removes} onChange={(event) => setRemoves(event.currentTarget.checked)} disabled={mayNot} />}
        <Switch label={text.enabled} description={text.enabledHelp} checked={enabled} onChange={(event) => setEnabled(event.currentTarget.checked)} disabled={mayNot} />
        {error !== null && <Failure error={error} title={text.endpoint} />}
        <Group justify="flex-end">
          <Allowed to={operation.needs}>
            {(control) => <Button {...control} type="submit" loading={isPending} disabled={control.disabled || types.length === 0}>{endpoint === null ? text.create : text.save}</Button>}
          </Allowed>
        </Group>
      </Stack>
    </form>
  )
}

import { Button, Checkbox, Group, Select, Stack, Switch, Textarea, TextInput } from '@mantine/core'
import { useState } from 'react'
import type { components } from '../../api/schema'
import classes from '../../parts/parts.module.css'
import { Allowed, useMay } from '../../parts/Role'
import { Failure } from '../../parts/States'
import { itemsOf } from '../../rules/secret-state'
import { pairsOf, linesOf } from '../../rules/typed-lines'
import { text } from '../../words/webhooks'
import { ENDPOINT_TYPES, WEBHOOK_TYPES } from './log'

export type Endpoint = components['schemas']['Endpoint']
export type Wish = components['schemas']['EndpointRequest']
type Mode = keyof typeof text.modes

type Settings = Pick<Endpoint, 'url' | 'sender_domains' | 'tags' | 'mode' | 'enabled'> & { readonly types: readonly string[]; readonly header_names: readonly string[] }
export const UNFILTERED: Pick<Settings, 'sender_domains' | 'tags' | 'mode' | 'header_names'> = { sender_domains: [], tags: [], mode: null, header_names: [] }

/** `save` gets all fields; an endpoint that exists keeps its headers unless others are typed. The webhook has no filters. */
export function EndpointForm({ present, isWebhook = false, save, isPending, error }: {
  readonly present: Readonly<Settings> | null
  readonly isWebhook?: boolean
  readonly save: (wish: Wish) => void
  readonly isPending: boolean
  readonly error: unknown
}) {
  const operation = isWebhook ? { needs: 'saveWebhook' } as const : present === null ? { needs: 'createEndpoint' } as const : { needs: 'saveEndpoint' } as const
  const all = isWebhook ? WEBHOOK_TYPES : ENDPOINT_TYPES
  const mayNot = !useMay(operation.needs)
  const [url, setUrl] = useState(present?.url ?? '')
  const [types, setTypes] = useState<string[]>([...(present?.types ?? all)])
  const [domains, setDomains] = useState(present?.sender_domains.join('\n') ?? '')
  const [tags, setTags] = useState(present?.tags.join('\n') ?? '')
  const [mode, setMode] = useState<Mode>(present?.mode ?? 'any')
  const [headers, setHeaders] = useState('')
  const [removes, setRemoves] = useState(false)
  const [enabled, setEnabled] = useState(present?.enabled ?? true)
  const names = present?.header_names ?? []
  const wish = (): Wish => ({
    url: url.trim(),
    types: types.length === all.length ? null : types as Endpoint['types'],
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
          <Group mt={4}>{all.map((type) => <Checkbox key={type} value={type} label={text.eventNames[type]} disabled={mayNot} />)}</Group>
        </Checkbox.Group>
        {!isWebhook && (
          <>
            <Textarea label={text.domains} description={text.domainsHelp} value={domains} onChange={(event) => setDomains(event.currentTarget.value)} {...lines} />
            <Textarea label={text.tags} description={text.tagsHelp} value={tags} onChange={(event) => setTags(event.currentTarget.value)} {...lines} />
            <Select label={text.mode} value={mode} allowDeselect={false} disabled={mayNot} onChange={(chosen) => setMode((chosen ?? 'any') as Mode)} data={Object.entries(text.modes).map(([value, label]) => ({ value, label }))} />
            <Textarea label={text.headers} description={names.length === 0 ? text.headersHelp : `${text.headersHelp} ${text.headersKept(names.join(', '))}`} value={headers} onChange={(event) => setHeaders(event.currentTarget.value)} {...lines} disabled={removes} />
            {names.length > 0 && <Checkbox label={text.headersRemove} checked={removes} onChange={(event) => setRemoves(event.currentTarget.checked)} disabled={mayNot} />}
          </>
        )}
        <Switch label={text.enabled} description={text.enabledHelp} checked={enabled} onChange={(event) => setEnabled(event.currentTarget.checked)} disabled={mayNot} />
        {error !== null && <Failure error={error} title={text.save} />}
        <Group justify="flex-end" className={classes.foot}>
          <Allowed to={operation.needs}>
            {(control) => <Button {...control} type="submit" loading={isPending} disabled={control.disabled || types.length === 0}>{present === null && !isWebhook ? text.create : text.save}</Button>}
          </Allowed>
        </Group>
      </Stack>
    </form>
  )
}

/** Every filter that the list has, as fields. */
import { Button, Group, NativeSelect, Stack, TextInput } from '@mantine/core'
import { useState } from 'react'
import { FILTERS, fromLocalInput, localInput, SOURCES, type FilterChange, type FilterName, type Filters } from '../../rules/message-list'
import { text } from '../../words/messages'

const TEXTS = ['recipient', 'sender', 'subject', 'tag', 'template', 'credential_id', 'request_id'] as const satisfies readonly FilterName[]
const TIMES = ['after', 'before'] as const

export function FilterForm({ filters, apply }: { readonly filters: Filters; readonly apply: FilterChange }) {
  const [given, setGiven] = useState<Filters>(filters)
  const put = (name: FilterName, value: string | undefined) => setGiven((present) => ({ ...present, [name]: value }))
  const hints: Partial<Record<FilterName, string>> = text.hints
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault()
        apply(Object.fromEntries(FILTERS.map((name) => [name, given[name]?.trim() === '' ? undefined : given[name]?.trim()])))
      }}
    >
      <Stack gap="xs">
        {TEXTS.map((name, place) => (
          <TextInput
            key={name}
            size="xs"
            label={text.names[name]}
            placeholder={hints[name]}
            value={given[name] ?? ''}
            onChange={(event) => put(name, event.currentTarget.value)}
            maxLength={300}
            autoComplete="off"
            data-autofocus={place === 0 || undefined}
          />
        ))}
        <NativeSelect
          size="xs"
          label={text.names.source}
          value={given.source ?? ''}
          onChange={(event) => put('source', event.currentTarget.value)}
          data={[{ value: '', label: text.sources.any }, ...SOURCES.map((source) => ({ value: source as string, label: text.sources[source] }))]}
        />
        {TIMES.map((name) => (
          <TextInput
            key={name}
            size="xs"
            type="datetime-local"
            label={text.names[name]}
            defaultValue={localInput(given[name])}
            onChange={(event) => put(name, fromLocalInput(event.currentTarget.value))}
          />
        ))}
        <Group justify="flex-end">
          <Button size="xs" type="submit">{text.filter.apply}</Button>
        </Group>
      </Stack>
    </form>
  )
}

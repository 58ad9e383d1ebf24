/** The draft with its preview and dry run next to it, and the versions below. */
import { Badge, Button, Group, JsonInput, SegmentedControl, SimpleGrid, Skeleton, Stack, Text, TextInput, Title } from '@mantine/core'
import { useDebouncedValue } from '@mantine/hooks'
import { Suspense, useMemo, useState } from 'react'
import { later } from '../../parts/later'
import { useRead, useWrite } from '../../api/queries'
import type { components } from '../../api/schema'
import { notify, notifyFailure } from '../../parts/notify'
import { Allowed, useMay } from '../../parts/Role'
import { dataOf, plainNames, textOf, withValue, type TestData } from '../../rules/test-data'
import { text } from '../../words/templates'
import { bodyOf, draftOf, isSame, written, type Draft } from './draft'
import { DryRun } from './DryRun'
import { Preview } from './Preview'
import classes from './templates.module.css'
import { Versions } from './Versions'

const Editor = later(() => import('./Editor'))
const PAUSE_MS = 400

export function Workbench({ template }: { readonly template: components['schemas']['TemplateWithVersions'] }) {
  const { alias, versions } = template
  const newest = draftOf(versions[0])
  const [draft, setDraft] = useState<Draft>(newest)
  // Another number for another text in the editor, which is uncontrolled.
  const [loaded, setLoaded] = useState(0)
  const [part, setPart] = useState<'html' | 'text'>(newest.html === '' && newest.text !== '' ? 'text' : 'html')
  const [json, setJson] = useTestData()
  const data = useMemo(() => dataOf(json), [json])
  const mayNot = !useMay('createTemplateVersion')
  const typed = useMemo(() => ({ draft, data: data ?? {} }), [draft, data])
  const [shown] = useDebouncedValue(typed, PAUSE_MS)
  const preview = useRead(
    ['template', alias, 'preview', shown.draft, shown.data],
    (api) => api.POST('/v1/templates/{alias}/preview', { params: { path: { alias } }, body: { ...bodyOf(shown.draft), version: null, variables: shown.data } }),
    { every: false, keep: true },
  )
  const save = useWrite(
    (api, publish: boolean) => api.POST('/v1/templates/{alias}/versions', { params: { path: { alias } }, body: { ...bodyOf(draft), publish } }), ['template', 'templates'],
  )
  const isChanged = !isSame(draft, newest)
  const store = (publish: boolean) => save.mutate(publish, {
    onSuccess: ({ version }) => notify(publish ? text.savedPublished(version) : text.saved(version)),
    onError: notifyFailure,
  })
  const load = (taken: Draft) => {
    setDraft(taken)
    setLoaded(loaded + 1)
  }
  return (
    <Stack gap="xl">
      <div className={classes.bench}>
        <Stack gap="sm" component="section" aria-label={text.editor} miw={0}>
          <Group justify="space-between">
            <Group gap="xs"><Title order={2} size="h4">{text.editor}</Title>{isChanged && <Badge variant="default" tt="none">{text.unsaved}</Badge>}</Group>
            <Group gap="xs">
              <Allowed to="createTemplateVersion" unless={isChanged ? null : text.nothingChanged}>
                {(control) => <Button {...control} variant="default" size="xs" loading={save.isPending && !save.variables} onClick={() => store(false)}>{text.save}</Button>}
              </Allowed>
              <Allowed to="publishTemplate" unless={isChanged ? null : text.nothingChanged}>
                {(control) => <Button {...control} size="xs" loading={save.isPending && save.variables} onClick={() => store(true)}>{text.savePublish}</Button>}
              </Allowed>
            </Group>
          </Group>
          <TextInput label={text.subject} maxLength={500} value={draft.subject} readOnly={mayNot} onChange={(event) => setDraft({ ...draft, subject: event.currentTarget.value })} autoComplete="off" />
          <SegmentedControl value={part} onChange={(chosen) => setPart(chosen === 'text' ? 'text' : 'html')} data={[{ value: 'html', label: text.parts.html }, { value: 'text', label: text.parts.text }]} aria-label={text.part} />
          <Suspense fallback={<Skeleton height={240} data-state="loading" />}>
            <Editor key={`${part} ${String(loaded)}`} initial={draft[part]} label={text.parts[part]} isHtml={part === 'html'} isReadOnly={mayNot} onChange={(value) => setDraft((before) => ({ ...before, [part]: value }))} />
          </Suspense>
          <Text size="xs" c="dimmed">{text.editorHelp}</Text>
          <Values names={preview.data?.variables.map(({ name }) => name) ?? []} template={written(draft)} json={json} data={data} onChange={setJson} />
        </Stack>
        <Stack gap="xl" miw={0}>
          <Preview query={preview} />
          <DryRun rendered={preview.data} />
        </Stack>
      </div>
      <Versions template={template} draft={draft} onLoad={load} />
    </Stack>
  )
}

/** Kept with the page's entry in the browser's history: it survives a reload, and is neither stored nor in the address. */
function useTestData(): [string, (json: string) => void] {
  const [json, setJson] = useState(() => (history.state as { testData?: string } | null)?.testData ?? '')
  const change = (given: string) => {
    setJson(given)
    history.replaceState({ ...history.state, testData: given }, '')
  }
  return [json, change]
}

function Values({ names, template, json, data, onChange }: {
  readonly names: readonly string[]
  readonly template: string
  readonly json: string
  /** Null while the text is no JSON object. */
  readonly data: TestData | null
  readonly onChange: (json: string) => void
}) {
  const plain = data === null ? [] : plainNames(names, template, data)
  return (
    <Stack gap="xs" component="section" aria-label={text.variables}>
      <Title order={3} size="h5">{text.variables}</Title>
      {names.length === 0 && <Text size="sm" c="dimmed">{text.noVariables}</Text>}
      <SimpleGrid cols={{ base: 1, sm: 2 }} spacing="xs">
        {plain.map((name) => <TextInput key={name} label={name} value={textOf(data ?? {}, name)} onChange={(event) => onChange(withValue(data ?? {}, name, event.currentTarget.value))} autoComplete="off" />)}
      </SimpleGrid>
      {names.length > 0 && (
        <JsonInput
          label={text.testData} description={text.testDataHelp} error={data === null ? text.testDataWrong : null} autosize minRows={3} maxRows={16}
          value={json} onChange={onChange} spellCheck={false}
        />
      )}
    </Stack>
  )
}

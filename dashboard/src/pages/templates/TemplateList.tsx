import { Button, Code, Group, Modal, Stack, Text, TextInput } from '@mantine/core'
import { useDisclosure } from '@mantine/hooks'
import { IconPlus } from '@tabler/icons-react'
import { useState } from 'react'
import { useList, useWrite } from '../../api/queries'
import { ItemList, ItemRow } from '../../parts/Items'
import { PageLink, useGo } from '../../parts/Link'
import { PageHeader } from '../../parts/PageHeader'
import classes from '../../parts/parts.module.css'
import { Allowed } from '../../parts/Role'
import { Empty, Failure, Loaded } from '../../parts/States'
import { StatusBadge } from '../../parts/Status'
import { Ago } from '../../parts/Time'
import { text as shared } from '../../words/parts'
import { text } from '../../words/templates'

export function TemplateList() {
  const templates = useList(['templates'], (api, cursor) => api.GET('/v1/templates', { params: { query: { cursor: cursor ?? null } } }), (page) => page.templates)
  const [isAdding, adding] = useDisclosure()
  const add = (
    <Allowed to="createTemplate">
      {(control) => <Button {...control} leftSection={<IconPlus size={16} />} aria-haspopup="dialog" onClick={adding.open}>{text.add}</Button>}
    </Allowed>
  )
  const isEmpty = templates.data !== undefined && templates.items.length === 0
  return (
    <>
      <PageHeader title={text.title} about={text.about} actions={isEmpty ? undefined : add} />
      <Loaded query={templates} isEmpty={() => isEmpty} empty={<Empty title={text.none} action={add}>{text.noneNext}</Empty>}>
        {() => (
          <ItemList label={text.list} hasMore={templates.hasNextPage} isLoadingMore={templates.isFetchingNextPage} loadMore={() => void templates.fetchNextPage()}>
            {templates.items.map((template) => (
              <ItemRow key={template.alias}>
                <Stack gap={2} miw={0} flex="1 1 240px">
                  <PageLink to={['templates', template.alias]} fw={600} className={classes.break}>{template.name}</PageLink>
                  <Group gap="xs"><Code>{template.alias}</Code><Text size="sm" c="dimmed">{text.changed} <Ago at={template.updated_at} /></Text></Group>
                </Stack>
                <PublishedBadge published={template.published_version} />
              </ItemRow>
            ))}
          </ItemList>
        )}
      </Loaded>
      {isAdding && <NewTemplate onClose={adding.close} />}
    </>
  )
}

export function PublishedBadge({ published }: { readonly published: number | null }) {
  return published === null ? <StatusBadge state="" label={text.unpublished} tone="plain" /> : <StatusBadge state="" label={text.published(published)} tone="good" />
}

function NewTemplate({ onClose }: { readonly onClose: () => void }) {
  const [alias, setAlias] = useState('')
  const [name, setName] = useState('')
  const go = useGo()
  const create = useWrite(
    (api) => api.POST('/v1/templates', { body: { alias: alias.trim(), name: name.trim() === '' ? null : name.trim(), publish: false, engine: null, ...text.starter } }), ['templates'],
  )
  return (
    <Modal opened onClose={onClose} title={text.add} closeButtonProps={{ 'aria-label': shared.close }}>
      <form onSubmit={(event) => { event.preventDefault(); create.mutate(undefined, { onSuccess: ({ template }) => go(['templates', template.alias]) }) }}>
        <Stack>
          <TextInput label={text.alias} description={text.aliasHelp} placeholder={text.aliasPlaceholder} required maxLength={64} value={alias} onChange={(event) => setAlias(event.currentTarget.value)} data-autofocus autoComplete="off" autoCapitalize="none" spellCheck={false} />
          <TextInput label={text.name} description={text.nameHelp} maxLength={200} value={name} onChange={(event) => setName(event.currentTarget.value)} autoComplete="off" />
          {create.error !== null && <Failure error={create.error} title={text.add} />}
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>{shared.cancel}</Button>
            <Button type="submit" loading={create.isPending}>{text.create}</Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  )
}

import { Button, Group, Stack, Text, Title } from '@mantine/core'
import { useState } from 'react'
import { useWrite } from '../../api/queries'
import type { components } from '../../api/schema'
import { ItemList, ItemRow } from '../../parts/Items'
import { notify, notifyFailure } from '../../parts/notify'
import classes from '../../parts/parts.module.css'
import { Allowed } from '../../parts/Role'
import { StatusBadge } from '../../parts/Status'
import { Ago } from '../../parts/Time'
import { text } from '../../words/templates'
import { Compare, DRAFT, type Compared } from './Compare'
import { draftOf, isSame, type Draft } from './draft'

export function Versions({ template, draft, onLoad }: {
  readonly template: components['schemas']['TemplateWithVersions']
  readonly draft: Draft
  readonly onLoad: (draft: Draft) => void
}) {
  const { alias, published_version: published } = template
  const [compared, setCompared] = useState<Compared | null>(null)
  const publish = useWrite(
    (api, version: number) => api.POST('/v1/templates/{alias}/publish', { params: { path: { alias } }, body: { version } }), ['template', 'templates'],
  )
  const drafts = new Map([[DRAFT, draft], ...template.versions.map((version) => [version.version, draftOf(version)] as const)])
  // Compared with the draft; if they are the same, with the version before.
  const compare = (place: number, version: number) => {
    const older = template.versions[place + 1]?.version
    const isDraft = isSame(drafts.get(version) ?? draft, draft)
    setCompared(isDraft && older !== undefined ? { before: older, after: version } : { before: version, after: DRAFT })
  }
  return (
    <Stack gap="sm" component="section" aria-label={text.versions}>
      <Title order={2} size="h4">{text.versions}</Title>
      <ItemList label={text.versions}>
        {template.versions.map((version, place) => {
          const { version: number } = version
          const isBack = published !== null && number < published
          return (
            <ItemRow key={number}>
              <Stack gap={2} miw={0} flex="1 1 220px">
                <Group gap="xs"><Text fw={600}>{text.version(number)}</Text>{number === published && <StatusBadge state="" label={text.isPublished} tone="good" />}</Group>
                <Text size="sm" c="dimmed" className={classes.break}><Ago at={version.created_at} /> {text.by(version.author)}</Text>
              </Stack>
              <Group gap="xs">
                <Button variant="default" size="xs" aria-label={text.compareNamed(number)} aria-haspopup="dialog" onClick={() => compare(place, number)}>{text.compare}</Button>
                <Button variant="default" size="xs" aria-label={text.loadNamed(number)} onClick={() => onLoad(draftOf(version))}>{text.load}</Button>
                {number !== published && (
                  <Allowed to="publishTemplate">
                    {(control) => (
                      <Button
                        {...control} variant="default" size="xs" loading={publish.isPending && publish.variables === number}
                        aria-label={isBack ? text.rollBackNamed(number) : text.publishNamed(number)}
                        onClick={() => publish.mutate(number, { onSuccess: () => notify(text.publishedNow(number)), onError: notifyFailure })}
                      >
                        {isBack ? text.rollBack : text.publish}
                      </Button>
                    )}
                  </Allowed>
                )}
              </Group>
            </ItemRow>
          )
        })}
      </ItemList>
      {compared !== null && <Compare drafts={drafts} initial={compared} onClose={() => setCompared(null)} />}
    </Stack>
  )
}

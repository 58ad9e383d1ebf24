/** What can be done with the selected messages, or with all that the filters choose. */
import { Button, Group, Paper, Text } from '@mantine/core'
import { IconDownload } from '@tabler/icons-react'
import { Suspense, useState } from 'react'
import { download } from '../../api/client'
import { later } from '../../parts/later'
import { notify, notifyFailure } from '../../parts/notify'
import { Allowed } from '../../parts/Role'
import { saveText } from '../../parts/save'
import { writeSearch } from '../../rules/address'
import { AGAIN_MOST, csv, toSendAgain, type Filters } from '../../rules/message-list'
import { text } from '../../words/messages'
import { text as shared } from '../../words/parts'
import classes from './messages.module.css'
import type { Listed } from './MessageRow'

const EachSelected = later(() => import('./EachSelected'))
const SendAgain = later(() => import('./SendAgain'))

const COLUMNS = ['id', 'created_at', 'status', 'state', 'source', 'from', 'to', 'recipient_count', 'subject', 'tags', 'template', 'credential_id'] as const

export function Selection({ selected, items, isWhole, query, onAll, onClear }: {
  /** Null for all that the filters choose. */
  readonly selected: ReadonlySet<string> | null
  readonly items: readonly Listed[]
  /** The list has been read to its end. */
  readonly isWhole: boolean
  readonly query: Filters
  readonly onAll: () => void
  readonly onClear: () => void
}) {
  const [asked, setAsked] = useState<'cancel' | 'suppress' | 'again' | null>(null)
  const ids = selected === null ? null : [...selected]
  const again = toSendAgain(ids ?? (isWhole && items.length <= AGAIN_MOST ? items.map(({ id }) => id) : null), query, new Date())
  const close = () => setAsked(null)
  function save(): void {
    if (selected === null) {
      void download(`/v1/messages/export${writeSearch(query)}`, 'messages.csv').then(() => notify(shared.exported), notifyFailure)
      return
    }
    const rows = items.filter(({ id }) => selected.has(id)).map((item) => COLUMNS.map((name) => [item[name]].flat().join(', ')))
    saveText('messages.csv', csv([COLUMNS, ...rows]))
  }
  return (
    <Paper withBorder p="xs" className={classes.selection} role="region" aria-label={text.selection}>
      <Group gap="xs">
        <Text size="sm" fw={600} role="status">{selected !== null ? text.selected(selected.size) : isWhole ? text.selected(items.length) : text.allSelected}</Text>
        {selected !== null && <Button size="compact-sm" variant="subtle" onClick={onAll}>{isWhole ? text.selectAll(items.length) : text.selectMatching}</Button>}
        <Allowed to="cancelMessages">
          {(control) => <Button {...control} size="compact-sm" variant="default" aria-haspopup="dialog" onClick={() => setAsked('cancel')}>{shared.cancel}</Button>}
        </Allowed>
        <Allowed to="addSuppression">
          {(control) => <Button {...control} size="compact-sm" variant="default" aria-haspopup="dialog" onClick={() => setAsked('suppress')}>{text.suppress}</Button>}
        </Allowed>
        <Allowed to="createResend" unless={again === null ? text.againMany : null}>
          {(control) => <Button {...control} size="compact-sm" variant="default" aria-haspopup="dialog" onClick={() => setAsked('again')}>{text.sendAgain}</Button>}
        </Allowed>
        <Allowed to="exportMessages">
          {(control) => <Button {...control} size="compact-sm" variant="default" leftSection={<IconDownload size={14} />} onClick={save}>{shared.export}</Button>}
        </Allowed>
        <Button size="compact-sm" variant="subtle" onClick={onClear}>{text.clearSelection}</Button>
      </Group>
      <Suspense fallback={null}>
        {(asked === 'cancel' || asked === 'suppress') && <EachSelected what={asked} ids={ids} query={query} onClose={close} />}
        {asked === 'again' && again !== null && <SendAgain {...again} onClose={close} />}
      </Suspense>
    </Paper>
  )
}

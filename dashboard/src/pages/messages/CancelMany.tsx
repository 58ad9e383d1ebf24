/** Cancels waiting messages by a tag or metadata: counts them first. */
import { Button, Group, Modal, Stack, Text, Textarea, TextInput } from '@mantine/core'
import { useState } from 'react'
import { useWrite } from '../../api/queries'
import type { components } from '../../api/schema'
import { Failure } from '../../parts/States'
import { pairsOf } from '../../rules/typed-lines'
import { text } from '../../words/messages'
import { text as shared } from '../../words/parts'

type Asked = components['schemas']['CancelMessagesRequest']
interface Counts {
  readonly isDryRun: boolean
  readonly cancelled: number
  readonly tried: number
}

export default function CancelMany({ tag: given, onClose }: { readonly tag: string; readonly onClose: () => void }) {
  const [tag, setTag] = useState(given)
  const [metadata, setMetadata] = useState('')
  const [counts, setCounts] = useState<Counts | null>(null)
  const cancel = useWrite((api, body: Asked) => api.POST('/v1/messages/cancel', { body }), ['messages', 'message', 'account', 'ledger', 'usage'])
  const pairs = pairsOf(metadata)
  const isNamed = tag.trim() !== '' || Object.keys(pairs).length > 0
  const isCounted = counts?.isDryRun === true && counts.cancelled > 0

  async function run(isDryRun: boolean): Promise<void> {
    const asked = { tag: tag.trim() === '' ? null : tag.trim(), metadata: Object.keys(pairs).length === 0 ? null : pairs, dry_run: isDryRun }
    let cancelled = 0
    let tried = 0
    let cursor: string | null = null
    // A request changes a bounded number and says where to continue.
    do {
      const answer: components['schemas']['CancelMessagesResponse'] = await cancel.mutateAsync({ ...asked, cursor })
      cancelled += answer.cancelled
      tried += answer.tried
      cursor = answer.next_cursor
      setCounts({ isDryRun, cancelled, tried })
    } while (cursor !== null)
  }

  return (
    <Modal opened onClose={onClose} title={text.many.cancel} closeButtonProps={{ 'aria-label': shared.close }}>
      {/* A refusal is shown below, from the mutation. */}
      <form onSubmit={(event) => { event.preventDefault(); run(!isCounted).catch(() => undefined) }}>
        <Stack>
          <Text size="sm">{text.many.cancelWhy}</Text>
          <TextInput label={text.many.tag} maxLength={128} value={tag} onChange={(event) => { setTag(event.currentTarget.value); setCounts(null) }} data-autofocus autoComplete="off" />
          <Textarea label={text.many.metadata} description={text.many.metadataHelp} autosize minRows={1} maxRows={6} value={metadata} onChange={(event) => { setMetadata(event.currentTarget.value); setCounts(null) }} spellCheck={false} />
          {counts !== null && (
            <Text size="sm" role="status">
              {counts.isDryRun ? text.many.toCancel(counts.cancelled) : text.many.cancelled(counts.cancelled)}
              {counts.tried > 0 && ` ${text.many.tried(counts.tried)}`}
            </Text>
          )}
          {cancel.error !== null && <Failure error={cancel.error} title={text.many.cancel} />}
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>{shared.close}</Button>
            <Button type="submit" color={isCounted ? 'red' : undefined} loading={cancel.isPending} disabled={!isNamed}>
              {isCounted ? text.many.cancelAction(counts.cancelled) : text.many.count}
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  )
}

/** Any two of the versions and the draft, line by line. */
import { Modal, NativeSelect, SimpleGrid, Stack, Text } from '@mantine/core'
import { useState } from 'react'
import { Diff } from '../../parts/Diff'
import { diff } from '../../rules/diff'
import { text as shared } from '../../words/parts'
import { text } from '../../words/templates'
import { isSame, written, type Draft } from './draft'

/** `0` is the draft: versions count from 1. */
export const DRAFT = 0

export interface Compared {
  readonly before: number
  readonly after: number
}

export function Compare({ drafts, initial, onClose }: {
  /** By version, newest first. */
  readonly drafts: ReadonlyMap<number, Draft>
  readonly initial: Compared
  readonly onClose: () => void
}) {
  const [{ before, after }, setCompared] = useState(initial)
  const [old, now] = [drafts.get(before), drafts.get(after)]
  const data = [...drafts.keys()].map((version) => ({ value: String(version), label: version === DRAFT ? text.editor : text.version(version) }))
  return (
    <Modal opened onClose={onClose} size="xl" title={text.compareTitle} closeButtonProps={{ 'aria-label': shared.close }}>
      <Stack>
        <SimpleGrid cols={2}>
          <NativeSelect label={text.before} value={String(before)} data={data} onChange={(event) => setCompared({ before: Number(event.currentTarget.value), after })} />
          <NativeSelect label={text.after} value={String(after)} data={data} onChange={(event) => setCompared({ before, after: Number(event.currentTarget.value) })} />
        </SimpleGrid>
        {old === undefined || now === undefined || isSame(old, now) ? <Text>{text.same}</Text> : <Diff lines={diff(written(old), written(now))} label={text.difference} />}
      </Stack>
    </Modal>
  )
}

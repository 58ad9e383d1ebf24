/** A file of addresses, with its progress. */
import { Alert, Button, FileInput, Group, Modal, Progress, Stack, Text } from '@mantine/core'
import { useQueryClient } from '@tanstack/react-query'
import { useRef, useState } from 'react'
import { upload } from '../../api/client'
import { useAccountId } from '../../api/queries'
import { Failure } from '../../parts/States'
import { readProgress, type ImportProgress } from '../../rules/import-progress'
import { number } from '../../words/format'
import { text as shared } from '../../words/parts'
import { text } from '../../words/suppressions'
import classes from './suppressions.module.css'

export function ImportDialog({ opened, close }: { readonly opened: boolean; readonly close: () => void }) {
  const account = useAccountId()
  const queries = useQueryClient()
  const [file, setFile] = useState<File | null>(null)
  const [progress, setProgress] = useState<ImportProgress | null>(null)
  const [error, setError] = useState<unknown>(null)
  const [isRunning, setRunning] = useState(false)
  const stopping = useRef<AbortController | null>(null)

  async function run(given: File): Promise<void> {
    const controller = new AbortController()
    stopping.current = controller
    setRunning(true)
    setError(null)
    setProgress(null)
    try {
      let rest = ''
      for await (const piece of upload('/v1/suppressions/import', given, 'text/csv', controller.signal)) {
        const read = readProgress(rest + piece)
        rest = read.rest
        if (read.progress !== null) setProgress(read.progress)
      }
    } catch (refused) {
      if (!controller.signal.aborted) setError(refused)
    } finally {
      setRunning(false)
      void queries.invalidateQueries({ queryKey: [account, 'suppressions'] })
    }
  }

  function end(): void {
    stopping.current?.abort()
    setFile(null)
    setProgress(null)
    setError(null)
    close()
  }

  return (
    <Modal opened={opened} onClose={end} title={text.importTitle} closeButtonProps={{ 'aria-label': shared.close }}>
      <Stack>
        <Text size="sm">{text.importWhat}</Text>
        <FileInput label={text.importFile} placeholder={text.importChoose} accept=".csv,.txt,text/csv,text/plain" value={file} onChange={setFile} disabled={isRunning} clearable={false} />
        {isRunning && <Progress value={100} striped animated aria-label={text.importing} />}
        <Text size="sm" role="status">
          {progress === null ? (isRunning ? text.importing : '') : text.counts(number(progress.lines), number(progress.added), number(progress.known), number(progress.invalid))}
        </Text>
        {progress?.done === true && <Alert color="teal">{text.importDone}</Alert>}
        {progress?.done === false && <Alert color="red" title={text.importFailed} role="alert"><Text size="sm" className={classes.break}>{progress.error}</Text></Alert>}
        {progress !== null && progress.errors.length > 0 && (
          <div>
            <Text size="sm" fw={600}>{text.importErrors}</Text>
            <ul className={classes.errors} tabIndex={0} aria-label={text.importErrors}>
              {progress.errors.map((wrong, place) => <li key={place}>{wrong}</li>)}
            </ul>
          </div>
        )}
        {error !== null && <Failure error={error} title={text.importFailed} />}
        <Group justify="flex-end">
          {isRunning && <Button variant="default" onClick={() => stopping.current?.abort()}>{text.importStop}</Button>}
          <Button disabled={file === null} loading={isRunning} onClick={() => file !== null && void run(file)}>{text.importStart}</Button>
        </Group>
      </Stack>
    </Modal>
  )
}

/** A CSV file of what the page lists. */
import { Button } from '@mantine/core'
import { IconDownload } from '@tabler/icons-react'
import { useState } from 'react'
import type { Operation } from '../rules/role'
import { text } from '../words/parts'
import { notify, notifyFailure } from './notify'
import { Allowed } from './Role'

export function ExportButton({ operation, save }: { readonly operation: Operation; readonly save: () => Promise<void> }) {
  const [isPending, setPending] = useState(false)
  async function run(): Promise<void> {
    setPending(true)
    try {
      await save()
      notify(text.exported)
    } catch (error) {
      notifyFailure(error)
    } finally {
      setPending(false)
    }
  }
  return (
    <Allowed to={operation}>
      {(control) => <Button {...control} variant="default" leftSection={<IconDownload size={16} />} loading={isPending} onClick={() => void run()}>{text.export}</Button>}
    </Allowed>
  )
}

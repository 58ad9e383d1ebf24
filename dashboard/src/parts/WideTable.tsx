/** A table in a box that scrolls sideways on its own, by keyboard too. A group, since a section around it has the same name. */
import { Table } from '@mantine/core'
import type { ReactNode } from 'react'

export function WideTable({ label, minWidth, children }: { readonly label: string; readonly minWidth: number; readonly children: ReactNode }) {
  return (
    <Table.ScrollContainer minWidth={minWidth} scrollAreaProps={{ viewportProps: { tabIndex: 0, role: 'group', 'aria-label': label } }}>
      <Table verticalSpacing="xs" styles={{ th: { whiteSpace: 'nowrap' } }}>{children}</Table>
    </Table.ScrollContainer>
  )
}

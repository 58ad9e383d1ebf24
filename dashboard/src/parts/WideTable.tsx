/**
 * A table in a box that scrolls sideways on its own, by keyboard too. A group, since a section around it has the same name.
 * No word is broken: long texts are cut, and cells of the class `rest` take the space that the others leave.
 */
import { Table } from '@mantine/core'
import type { ReactNode } from 'react'
import { byDay } from '../rules/days'
import classes from './parts.module.css'

export function WideTable({ label, minWidth, children }: { readonly label: string; readonly minWidth: number; readonly children: ReactNode }) {
  return (
    <Table.ScrollContainer minWidth={minWidth} scrollAreaProps={{ viewportProps: { tabIndex: 0, role: 'group', 'aria-label': label } }}>
      <Table verticalSpacing="xs" className={classes.wide ?? ''}>{children}</Table>
    </Table.ScrollContainer>
  )
}

/** Rows under a line for each day: their times need no date. */
export function DayRows<Item>({ items, at, columns, row }: {
  readonly items: readonly Item[]
  readonly at: (item: Item) => string
  readonly columns: number
  readonly row: (item: Item, place: number) => ReactNode
}) {
  return byDay(items, at).map(({ day, items: ofDay }) => (
    <Table.Tbody key={day}>
      <Table.Tr><Table.Th colSpan={columns} scope="rowgroup" c="dimmed" fz="xs">{day}</Table.Th></Table.Tr>
      {ofDay.map(row)}
    </Table.Tbody>
  ))
}

/** The first of many things, and a button for the rest. */
import { Button } from '@mantine/core'
import { useState, type ReactNode } from 'react'
import { text } from '../words/parts'

const SHOWN = 5

export function First<Item>({ items, children }: { readonly items: readonly Item[]; readonly children: (shown: readonly Item[]) => ReactNode }) {
  const [isAll, setAll] = useState(false)
  const isCut = !isAll && items.length > SHOWN
  return (
    <>
      {children(isCut ? items.slice(0, SHOWN) : items)}
      {isCut && <div><Button size="xs" variant="default" onClick={() => setAll(true)}>{text.showAll(items.length)}</Button></div>}
    </>
  )
}

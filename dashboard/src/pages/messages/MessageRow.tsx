/** A message in the list: the row is its link, next to a box that selects it. */
import { useMediaQuery } from '@mantine/hooks'
import { memo, type KeyboardEvent } from 'react'
import type { components } from '../../api/schema'
import { RouterLink, usePath } from '../../parts/Link'
import { StatusBadge } from '../../parts/Status'
import { unturned } from '../../rules/foreign-text'
import { clock, moment, number } from '../../words/format'
import { text } from '../../words/messages'
import classes from './messages.module.css'

export type Listed = components['schemas']['ListedMessage']

const ROW = 52
const NARROW_ROW = 72

export const useRowHeight = (): number => (useMediaQuery('(max-width: 820px)', false, { getInitialValueInEffect: false }) ? NARROW_ROW : ROW)

/** Focuses the next row's link, or the one before; the list's first if no row has the focus. */
export function moveFocus(isNext: boolean): void {
  let row: Element | null | undefined = document.activeElement?.closest('[role=listitem]')
  if (row === null) row = document.querySelector('[role=listitem]')
  else row = isNext ? row?.nextElementSibling : row?.previousElementSibling
  // The line of a day has no link.
  while (row != null && row.querySelector('a') === null) row = isNext ? row.nextElementSibling : row.previousElementSibling
  row?.querySelector('a')?.focus()
}

function move(event: KeyboardEvent<HTMLElement>): void {
  if (event.key !== 'ArrowDown' && event.key !== 'ArrowUp') return
  event.preventDefault()
  moveFocus(event.key === 'ArrowDown')
}

/** The id of the row that has the focus. */
export const focusedRow = (): string | undefined => document.activeElement?.closest('[role=listitem]')?.querySelector('input')?.value

/** Rendered again only when the message or its selection changes: the list is rendered several times for each page it loads. */
export const MessageRow = memo(function MessageRow({ message, isSelected, onSelect }: {
  readonly message: Listed
  readonly isSelected: boolean
  readonly onSelect: (id: string) => void
}) {
  const [first, ...others] = message.to
  const more = message.recipient_count - 1
  const path = usePath()
  return (
    <div className={classes.whole} onKeyDown={move}>
      <input type="checkbox" className={classes.select} value={message.id} checked={isSelected} onChange={() => onSelect(message.id)} aria-label={text.select(first ?? '')} />
      <RouterLink to={path('messages', message.id)} className={`${classes.grid ?? ''} ${classes.row ?? ''}`}>
        <span className={classes.to} title={[first, ...others].join(', ')}>
          <bdi className={classes.cut}>{unturned(first ?? '')}</bdi>
          {more > 0 && <span role="img" aria-label={text.moreSpoken(number(more))} className={classes.tag}>{text.more(number(more))}</span>}
        </span>
        <span className={classes.status}><StatusBadge state={message.state} /></span>
        <span className={classes.subject}>
          <bdi className={classes.cut} title={text.from(unturned(message.from))}>{unturned(message.subject ?? text.forgottenSubject) || text.noSubject}</bdi>
          {message.tags.slice(0, 2).map((tag, place) => <span key={`${String(place)} ${tag}`} className={classes.tag}>{tag}</span>)}
        </span>
        <time dateTime={message.created_at} title={moment(message.created_at)} className={classes.when}>{clock(message.created_at)}</time>
      </RouterLink>
    </div>
  )
})

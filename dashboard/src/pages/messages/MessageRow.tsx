/** A message in the list: the whole row is its link. */
import { useMediaQuery } from '@mantine/hooks'
import { memo, type KeyboardEvent } from 'react'
import type { components } from '../../api/schema'
import { RouterLink, usePath } from '../../parts/Link'
import { StatusBadge } from '../../parts/Status'
import { moment, number, relative } from '../../words/format'
import { text } from '../../words/messages'
import classes from './messages.module.css'

export type Listed = components['schemas']['ListedMessage']

const ROW = 52
const NARROW_ROW = 72

export const useRowHeight = (): number => (useMediaQuery('(max-width: 820px)', false, { getInitialValueInEffect: false }) ? NARROW_ROW : ROW)

/** Arrow keys go to the next row and the one before. */
function move(event: KeyboardEvent<HTMLElement>): void {
  if (event.key !== 'ArrowDown' && event.key !== 'ArrowUp') return
  const row = event.currentTarget.closest('[role=listitem]')
  const next = event.key === 'ArrowDown' ? row?.nextElementSibling : row?.previousElementSibling
  const link = next?.querySelector('a')
  if (link == null) return
  event.preventDefault()
  link.focus()
}

/** Rendered again only when the message or the time changes: the list is rendered several times for each page it loads. */
export const MessageRow = memo(function MessageRow({ message, now }: { readonly message: Listed; readonly now: Date }) {
  const [first, ...others] = message.to
  const more = message.recipient_count - 1
  const path = usePath()
  return (
    <div className={classes.whole} onKeyDown={move}>
      <RouterLink to={path('messages', message.id)} className={`${classes.grid ?? ''} ${classes.row ?? ''}`}>
        <span className={classes.to} title={[first, ...others].join(', ')}>
          <span className={classes.cut}>{first}</span>
          {more > 0 && <span role="img" aria-label={text.moreSpoken(number(more))} className={classes.tag}>{text.more(number(more))}</span>}
        </span>
        <span className={classes.status}><StatusBadge state={message.status} /></span>
        <span className={classes.subject}>
          <span className={classes.cut} title={text.from(message.from)}>{(message.subject ?? text.forgottenSubject) || text.noSubject}</span>
          {message.tags.slice(0, 2).map((tag, place) => <span key={`${String(place)} ${tag}`} className={classes.tag}>{tag}</span>)}
        </span>
        <time dateTime={message.created_at} title={moment(message.created_at)} className={classes.when}>{relative(message.created_at, now)}</time>
      </RouterLink>
    </div>
  )
})

/**
 * Foreign HTML, in a frame that runs nothing and takes neither clicks nor focus. A form posts it there, since a `srcdoc`
 * would inherit our policy and lose its styles. The fields are those that the service's frame reads, in their order.
 */
import { Box } from '@mantine/core'
import { useEffect, useId, useRef } from 'react'
import { BASE } from '../rules/address'
import { text } from '../words/parts'
import classes from './parts.module.css'

export function HtmlFrame({ html, title, remote = false, height = 480, width }: {
  readonly html: string
  readonly title?: string
  /** Load pictures from the internet; ask the user first. */
  readonly remote?: boolean
  readonly height?: number
  /** CSS pixels; the available width unless given. */
  readonly width?: number
}) {
  const name = `frame-${useId().replaceAll(/[^a-z0-9]/gi, '')}`
  const form = useRef<HTMLFormElement>(null)
  useEffect(() => form.current?.submit(), [html, remote])
  return (
    <Box maw="100%" className={classes.table} tabIndex={width === undefined ? undefined : 0} role="group" aria-label={title ?? text.frameTitle}>
      <form ref={form} method="post" action={`${BASE}/frame`} target={name} encType="text/plain" hidden>
        <input type="hidden" name="remote" value={remote ? '1' : '0'} readOnly />
        <textarea name="html" value={html} readOnly />
      </form>
      <iframe name={name} title={title ?? text.frameTitle} sandbox="" inert className={classes.frame} height={height} width={width} style={width === undefined ? {} : { width }} />
    </Box>
  )
}

/** Lines that were added and removed, shown by a sign and by colour. */
import { Code } from '@mantine/core'
import type { DiffLine } from '../rules/diff'
import classes from './parts.module.css'

const SIGNS = { same: ' ', added: '+', removed: '−' } as const

export function Diff({ lines, label }: { readonly lines: readonly DiffLine[]; readonly label: string }) {
  return (
    <Code block className={classes.code} tabIndex={0} role="region" aria-label={label}>
      {lines.map((line, index) => <span key={index} className={classes.line} data-kind={line.kind}>{`${SIGNS[line.kind]} ${line.text}\n`}</span>)}
    </Code>
  )
}

/** Permissions of the user: a control for an operation that they may not call is disabled and says which role may. */
import { Tooltip, type TooltipProps } from '@mantine/core'
import { createContext, use, useId, type ReactElement } from 'react'
import { lack, type Access, type Operation } from '../rules/role'
import { text } from '../words/roles'
import classes from './parts.module.css'

export const AccessContext = createContext<Access>({ role: 'viewer', lacksFactor: false, operator: 'no' })

/** Null if the user may, else the reason in words. */
export function useReason(operation: Operation): string | null {
  const lacking = lack(use(AccessContext), operation)
  return lacking === null ? null : text.needs[lacking]
}

export const useMay = (operation: Operation): boolean => useReason(operation) === null

interface ControlProps {
  readonly disabled: boolean
  readonly 'aria-describedby'?: string
  /** For tests of the roles. */
  readonly 'data-operation'?: Operation
}

/** `<Allowed to="createKey">{(control) => <Button {...control} onClick={…}>…</Button>}</Allowed>` */
export function Allowed({ to, unless, position, children }: {
  readonly to: Operation
  /** Another reason why it is disabled now. */
  readonly unless?: string | null | undefined
  readonly position?: TooltipProps['position']
  readonly children: (control: ControlProps) => ReactElement
}) {
  const forbidden = useReason(to)
  const reason = forbidden ?? unless ?? null
  const id = useId()
  if (reason === null) return children({ disabled: false, 'data-operation': to })
  // The wrapper takes the focus and the pointer, which a disabled control does not.
  return (
    <Tooltip label={reason} position={position ?? 'top'} events={{ hover: true, focus: true, touch: true }} multiline maw={280}>
      <span className={classes.reason} tabIndex={0} role="group" aria-describedby={id} data-operation={to} data-reason={reason}>
        {children({ disabled: true, 'aria-describedby': id })}
        <span id={id} className={classes.spoken}>{reason}</span>
      </span>
    </Tooltip>
  )
}

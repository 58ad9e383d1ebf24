/** A timeline. */
import { Text, Timeline } from '@mantine/core'
import type { ReactNode } from 'react'
import classes from './parts.module.css'
import { Moment } from './Time'
import { toneColor, type Tone } from './Status'

export interface Step {
  readonly key: string
  readonly title: ReactNode
  readonly at?: string | null
  readonly tone?: Tone
  readonly icon?: ReactNode
  /** In the future: drawn with a dashed line. */
  readonly isAhead?: boolean
  readonly body?: ReactNode
}

export function Steps({ steps }: { readonly steps: readonly Step[] }) {
  const active = steps.findLastIndex((step) => step.isAhead !== true)
  return (
    <Timeline active={active} bulletSize={22} lineWidth={2} className={classes.steps}>
      {steps.map((step) => (
        <Timeline.Item key={step.key} title={step.title} bullet={step.icon} color={toneColor(step.tone ?? 'plain')} lineVariant={step.isAhead === true ? 'dashed' : 'solid'}>
          {step.at != null && <Text size="xs" c="dimmed"><Moment at={step.at} /></Text>}
          {step.body}
        </Timeline.Item>
      ))}
    </Timeline>
  )
}

import { Group, SegmentedControl, TextInput } from '@mantine/core'
import { useState } from 'react'
import { changedDates, daysBefore, DETAILS_DAYS, RANGES, type Period, type Range } from '../../rules/period'
import { text } from '../../words/overview'
import classes from './overview.module.css'

export type RangeChange = (changed: { range?: string | undefined; from?: string | undefined; to?: string | undefined }) => void

export function RangeChoice({ period, today, change }: { readonly period: Period; readonly today: string; readonly change: RangeChange }) {
  const week = { from: daysBefore(today, 6), to: today }
  const dates = 'from' in period.days ? period.days : week
  const choose = (range: Range) => change({ range: range === '7d' ? undefined : range, from: undefined, to: undefined, ...(range === 'dates' ? week : {}) })
  return (
    <>
      <SegmentedControl
        aria-label={text.period}
        classNames={{ root: classes.ranges ?? '', label: classes.range ?? '' }}
        data={RANGES.map((value) => ({ value, label: text.ranges[value] }))}
        value={period.range}
        onChange={(value) => choose(value as Range)}
      />
      {period.range === 'dates' && (
        <Group gap="xs" wrap="nowrap">
          {(['from', 'to'] as const).map((name) => (
            <DateInput key={name} label={text.dates[name]} value={dates[name]} today={today} change={(day) => change(changedDates(dates, name, day))} />
          ))}
        </Group>
      )}
    </>
  )
}

/** Keeps what is typed until it is a day that can be chosen. */
function DateInput({ label, value, today, change }: { readonly label: string; readonly value: string; readonly today: string; readonly change: (day: string) => void }) {
  const [typed, setTyped] = useState({ value, of: value })
  if (typed.of !== value) setTyped({ value, of: value })
  const oldest = daysBefore(today, DETAILS_DAYS)
  return (
    <TextInput
      type="date"
      aria-label={label}
      title={label}
      value={typed.value}
      min={oldest}
      max={today}
      onChange={(event) => {
        const day = event.currentTarget.value
        setTyped({ value: day, of: value })
        if (day >= oldest && day <= today) change(day)
      }}
    />
  )
}

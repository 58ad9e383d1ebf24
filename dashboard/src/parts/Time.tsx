/** Times that are kept up to date. */
import { Text, Tooltip, type TextProps } from '@mantine/core'
import { useEffect, useState } from 'react'
import { clock, duration, moment, relative } from '../words/format'
import { text } from '../words/parts'

/** The present time, renewed every `ms`. */
export function useNow(ms: number): Date {
  const [now, setNow] = useState(() => new Date())
  useEffect(() => {
    const timer = setInterval(() => setNow(new Date()), ms)
    return () => clearInterval(timer)
  }, [ms])
  return now
}

/** "3 minutes ago", with the exact time on hover and focus. */
export function Ago({ at, ...rest }: { readonly at: string } & TextProps) {
  const now = useNow(10_000)
  return (
    <Tooltip label={moment(at)}>
      <Text span inherit {...rest}><time dateTime={at}>{relative(at, now)}</time></Text>
    </Tooltip>
  )
}

/** Date and time. */
export function Moment({ at, ...rest }: { readonly at: string } & TextProps) {
  return <Text span inherit {...rest}><time dateTime={at}>{moment(at)}</time></Text>
}

/** The time of a day that is named elsewhere; the date too on hover. */
export function Clock({ at }: { readonly at: string }) {
  return <time dateTime={at} title={moment(at)}>{clock(at)}</time>
}

/** The time left, each second; then `done`. */
export function Countdown({ until, done }: { readonly until: string; readonly done?: string }) {
  const seconds = (new Date(until).getTime() - useNow(1_000).getTime()) / 1000
  return <time dateTime={until} title={moment(until)}>{seconds > 0 ? duration(Math.ceil(seconds)) : (done ?? text.overdue)}</time>
}

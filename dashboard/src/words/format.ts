/** Numbers and times in the reader's own language and time zone. */
const LOCALE = typeof navigator === 'undefined' ? 'en' : navigator.language
const MINUTE = 60
const HOUR = 60 * MINUTE
const DAY = 24 * HOUR

const NUMBER = new Intl.NumberFormat(LOCALE)
const RATE = new Intl.NumberFormat(LOCALE, { maximumSignificantDigits: 3 })
const SIGNED = new Intl.NumberFormat(LOCALE, { signDisplay: 'exceptZero' })
const PERCENT = new Intl.NumberFormat(LOCALE, { style: 'percent', maximumFractionDigits: 2 })
const WHOLE_PERCENT = new Intl.NumberFormat(LOCALE, { style: 'percent' })
const MOMENT = new Intl.DateTimeFormat(LOCALE, { dateStyle: 'medium', timeStyle: 'medium' })
const MINUTES = new Intl.DateTimeFormat(LOCALE, { dateStyle: 'medium', timeStyle: 'short' })
const CLOCK = new Intl.DateTimeFormat(LOCALE, { timeStyle: 'medium' })
const DATE = new Intl.DateTimeFormat(LOCALE, { dateStyle: 'medium' })
const SHORT_DATE = new Intl.DateTimeFormat(LOCALE, { month: 'short', day: 'numeric' })
const UTC_DATE = new Intl.DateTimeFormat(LOCALE, { month: 'short', day: 'numeric', timeZone: 'UTC' })
const HOURS = new Intl.DateTimeFormat(LOCALE, { month: 'short', day: 'numeric', hour: '2-digit', minute: '2-digit' })
const HOUR_OF_DAY = new Intl.DateTimeFormat(LOCALE, { hour: 'numeric', minute: '2-digit' })
const RELATIVE = new Intl.RelativeTimeFormat(LOCALE, { numeric: 'auto' })
const LIST = new Intl.ListFormat(LOCALE)

const unit = (name: string, digits = 0) =>
  new Intl.NumberFormat(LOCALE, { style: 'unit', unit: name, unitDisplay: 'short', maximumFractionDigits: digits })
// "730 byte" in short.
const WHOLE_BYTES = new Intl.NumberFormat(LOCALE, { style: 'unit', unit: 'byte', unitDisplay: 'long' })
const BYTES = [WHOLE_BYTES, unit('kilobyte', 1), unit('megabyte', 1), unit('gigabyte', 1)]
const [MS, SECONDS, EXACT_SECONDS, MINUTE_UNIT, HOUR_UNIT, DAY_UNIT] = [
  unit('millisecond'), unit('second'), unit('second', 1), unit('minute'), unit('hour'), unit('day'),
]

export const number = (value: number): string => NUMBER.format(value)
/** To three digits: "0.125", "12.5", "1,250". */
export const rate = (value: number): string => RATE.format(value)
/** A change: "+1", "-1", "0". */
export const signed = (value: number): string => SIGNED.format(value)
/** A share between 0 and 1. */
export const percent = (share: number): string => PERCENT.format(share)
export const wholePercent = (share: number): string => WHOLE_PERCENT.format(share)
/** Date and time, to the second. */
export const moment = (at: string | Date): string => MOMENT.format(new Date(at))
/** Date and time, to the minute. */
export const minute = (at: string | Date): string => MINUTES.format(new Date(at))
export const clock = (at: string | Date): string => CLOCK.format(new Date(at))
export const date = (at: string | Date): string => DATE.format(new Date(at))
export const shortDate = (at: string | Date): string => SHORT_DATE.format(new Date(at))
/** A day of the service, which counts in UTC: `2026-11-17`. */
export const utcDay = (day: string): string => UTC_DATE.format(new Date(`${day.slice(0, 10)}T00:00:00Z`))
export const hour = (at: string | Date): string => HOURS.format(new Date(at))
export const hourOfDay = (at: string | Date): string => HOUR_OF_DAY.format(new Date(at))
export const list = (items: readonly string[]): string => LIST.format(items)

export function bytes(count: number): string {
  let size = count
  let step = 0
  while (size >= 1000 && step < BYTES.length - 1) {
    size /= 1000
    step += 1
  }
  return BYTES[step]?.format(size) ?? String(count)
}

/** A length of time with at most two units: "1.2 sec", "4 min 10 sec". */
export function duration(seconds: number): string {
  if (seconds < 1) return MS.format(seconds * 1000)
  if (seconds < 10) return EXACT_SECONDS.format(seconds)
  if (seconds < MINUTE) return SECONDS.format(seconds)
  const two = (large: Intl.NumberFormat, size: number, small: Intl.NumberFormat, rest: number) =>
    Math.floor((seconds % size) / rest) > 0
      ? `${large.format(Math.floor(seconds / size))} ${small.format(Math.floor((seconds % size) / rest))}`
      : large.format(Math.floor(seconds / size))
  if (seconds < HOUR) return two(MINUTE_UNIT, MINUTE, SECONDS, 1)
  if (seconds < DAY) return two(HOUR_UNIT, HOUR, MINUTE_UNIT, MINUTE)
  return two(DAY_UNIT, DAY, HOUR_UNIT, HOUR)
}

/** "3 minutes ago", "in 2 hours"; "now" for seconds ahead: the clocks of two machines differ, and a page's is a little late. */
export function relative(at: string | Date, now: Date = new Date()): string {
  const seconds = (new Date(at).getTime() - now.getTime()) / 1000
  const size = Math.abs(seconds)
  if (size < MINUTE) return RELATIVE.format(Math.min(0, Math.round(seconds)), 'second')
  if (size < HOUR) return RELATIVE.format(Math.round(seconds / MINUTE), 'minute')
  if (size < DAY) return RELATIVE.format(Math.round(seconds / HOUR), 'hour')
  return RELATIVE.format(Math.round(seconds / DAY), 'day')
}

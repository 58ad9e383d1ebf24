import type { Tone } from './Status'

export interface Series {
  readonly name: string
  readonly label: string
  readonly tone: Tone
}

export interface ChartProps {
  readonly label: string
  readonly kind?: 'bars' | 'lines'
  readonly series: readonly Series[]
  /** `at` is the label on the axis. */
  readonly rows: readonly { readonly at: string; readonly values: Readonly<Record<string, number>> }[]
  readonly format?: (value: number) => string
}

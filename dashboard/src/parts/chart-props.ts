import type { Tone } from './Status'

export interface Series {
  readonly name: string
  readonly label: string
  readonly tone: Tone
}

export interface Row {
  /** The label in the table and, without a `tick`, on the axis. */
  readonly at: string
  readonly tick?: string
  readonly values: Readonly<Record<string, number>>
  /** The page that a click on the bar, or the label in the table, leads to. */
  readonly link?: { readonly to: readonly string[]; readonly search: Readonly<Record<string, string>> }
}

export interface ChartProps {
  readonly label: string
  readonly kind?: 'bars' | 'lines'
  readonly series: readonly Series[]
  /** What the horizontal axis shows. */
  readonly axis?: string
  readonly rows: readonly Row[]
  readonly format?: (value: number) => string
}

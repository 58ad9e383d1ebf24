/** Recharts, in a separate chunk. */
import { BarChart, LineChart } from '@mantine/charts'
import '@mantine/charts/styles.css'
import type { ChartProps } from './chart-props'
import { toneColor } from './Status'

export default function ChartDrawing({ kind, series, rows, format }: ChartProps) {
  const shared = {
    h: 250,
    data: rows.map(({ at, values }) => ({ at, ...values })),
    dataKey: 'at',
    series: series.map(({ name, label, tone }) => ({ name, label, color: `${toneColor(tone)}.6` })),
    // The table next to it is for keyboards and screen readers; the drawing is hidden from them.
    accessibilityLayer: false,
    withLegend: true,
    // Sorted as the series.
    legendProps: { itemSorter: null },
    ...(format === undefined ? {} : { valueFormatter: format }),
  }
  return kind === 'lines' ? <LineChart {...shared} curveType="linear" /> : <BarChart {...shared} type="stacked" maxBarWidth={48} />
}

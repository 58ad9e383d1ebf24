/** Recharts, in a separate chunk. */
import { BarChart, LineChart } from '@mantine/charts'
import '@mantine/charts/styles.css'
import type { ChartProps } from './chart-props'
import { useGo } from './Link'
import { toneColor } from './Status'

export default function ChartDrawing({ kind, series, rows, format, axis }: ChartProps) {
  const go = useGo()
  const ticks = new Map(rows.map(({ at, tick }) => [at, tick ?? at]))
  const isLinked = rows.some(({ link }) => link !== undefined)
  const open = ({ activeLabel }: { readonly activeLabel?: string | number | undefined }) => {
    const link = rows.find(({ at }) => at === activeLabel)?.link
    // Without a mouse, a tap shows the numbers; the table has the links.
    if (link !== undefined && matchMedia('(hover: hover)').matches) go(link.to, link.search)
  }
  const shared = {
    h: 250,
    data: rows.map(({ at, values }) => ({ at, ...values })),
    dataKey: 'at',
    xAxisProps: { tickFormatter: (at: string) => ticks.get(at) ?? at },
    ...(axis === undefined ? {} : { xAxisLabel: axis }),
    series: series.map(({ name, label, tone }) => ({ name, label, color: `${toneColor(tone)}.6` })),
    // The table next to it is for keyboards and screen readers; the drawing is hidden from them.
    accessibilityLayer: false,
    withLegend: true,
    // Sorted as the series.
    legendProps: { itemSorter: null },
    ...(format === undefined ? {} : { valueFormatter: format }),
  }
  return kind === 'lines' ? <LineChart {...shared} curveType="linear" /> : (
    <BarChart {...shared} type="stacked" maxBarWidth={48} {...(isLinked ? { barChartProps: { onClick: open, style: { cursor: 'pointer' } } } : {})} />
  )
}

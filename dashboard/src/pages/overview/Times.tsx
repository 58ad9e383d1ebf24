import { Table, Text } from '@mantine/core'
import type { components } from '../../api/schema'
import { Section } from '../../parts/Section'
import { duration, number } from '../../words/format'
import { providers as names, text } from '../../words/overview'
import classes from './overview.module.css'

export function Times({ providers }: { readonly providers: readonly components['schemas']['ProviderUsage'][] }) {
  return (
    <Section title={text.times} about={text.timesAbout}>
      {providers.length === 0 ? <Text size="sm">{text.timesNone}</Text> : (
        <Table.ScrollContainer minWidth={360} scrollAreaProps={{ viewportProps: { tabIndex: 0, 'aria-label': text.timesTable, role: 'region' } }}>
          <Table ff="inherit" withRowBorders tabularNums horizontalSpacing="xs" className={classes.times}>
            <Table.Thead>
              <Table.Tr>
                <Table.Th scope="col">{text.columns.provider}</Table.Th>
                <Table.Th scope="col" ta="right">{text.columns.delivered}</Table.Th>
                <Table.Th scope="col" ta="right">{text.columns.p50}</Table.Th>
                <Table.Th scope="col" ta="right">{text.columns.p95}</Table.Th>
                <Table.Th scope="col" ta="right">{text.columns.p99}</Table.Th>
              </Table.Tr>
            </Table.Thead>
            <Table.Tbody>
              {providers.map(({ provider, delivered, time_to_delivered: times }) => (
                <Table.Tr key={provider}>
                  <Table.Th scope="row" fw={500}>{names[provider] ?? provider}</Table.Th>
                  <Table.Td ta="right">{number(delivered)}</Table.Td>
                  <Table.Td ta="right">{shown(times?.p50_seconds)}</Table.Td>
                  <Table.Td ta="right">{shown(times?.p95_seconds)}</Table.Td>
                  <Table.Td ta="right">{shown(times?.p99_seconds)}</Table.Td>
                </Table.Tr>
              ))}
            </Table.Tbody>
          </Table>
        </Table.ScrollContainer>
      )}
    </Section>
  )
}

const shown = (seconds: number | undefined): string => (seconds === undefined ? text.noTime : duration(seconds))

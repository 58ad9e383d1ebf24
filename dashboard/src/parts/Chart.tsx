/** A chart, loaded after the page's numbers, with the same numbers in a table next to it. */
import { Box, Collapse, Skeleton, Table, Text, UnstyledButton } from '@mantine/core'
import { useDisclosure } from '@mantine/hooks'
import { Suspense } from 'react'
import { later } from './later'
import { PageLink } from './Link'
import { number } from '../words/format'
import { text } from '../words/parts'
import classes from './parts.module.css'
import type { ChartProps } from './chart-props'

export type { ChartProps, Series } from './chart-props'

const Drawing = later(() => import('./ChartDrawing'))

export function Chart(props: ChartProps) {
  const [isOpen, { toggle }] = useDisclosure()
  const format = props.format ?? number
  return (
    <Box component="figure" m={0}>
      <Text component="figcaption" fw={600} mb="xs">{props.label}</Text>
      <div className={classes.chart} aria-hidden="true">
        <Suspense fallback={<Skeleton height="100%" />}><Drawing {...props} /></Suspense>
      </div>
      <UnstyledButton onClick={toggle} aria-expanded={isOpen} fz="sm" td="underline" className={classes.unprinted}>{text.table}</UnstyledButton>
      <Collapse expanded={isOpen}>
        <div className={classes.table} tabIndex={0} role="region" aria-label={props.label}>
          <Table className={classes.numbers} captionSide="top">
            <Table.Caption>{props.label}</Table.Caption>
            <Table.Thead>
              <Table.Tr>
                <Table.Th scope="col">{text.when}</Table.Th>
                {props.series.map(({ name, label }) => <Table.Th key={name} scope="col">{label}</Table.Th>)}
              </Table.Tr>
            </Table.Thead>
            <Table.Tbody>
              {props.rows.map(({ at, values, link }) => (
                <Table.Tr key={at}>
                  <Table.Th scope="row">{link === undefined ? at : <PageLink to={link.to} search={link.search}>{at}</PageLink>}</Table.Th>
                  {props.series.map(({ name }) => <Table.Td key={name}>{values[name] === undefined ? '–' : format(values[name])}</Table.Td>)}
                </Table.Tr>
              ))}
            </Table.Tbody>
          </Table>
        </div>
      </Collapse>
    </Box>
  )
}

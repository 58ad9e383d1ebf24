import { Button, SegmentedControl, Table, Text } from '@mantine/core'
import { useState } from 'react'
import type { components } from '../../api/schema'
import { Foreign } from '../../parts/Foreign'
import { PageLink, useFilters } from '../../parts/Link'
import { Section } from '../../parts/Section'
import { WideTable } from '../../parts/WideTable'
import { share } from '../../rules/figures'
import { number, percent, utcDay } from '../../words/format'
import { providers as names, text } from '../../words/overview'
import classes from './overview.module.css'

const KINDS = ['domain', 'tag', 'provider'] as const
type Kind = (typeof KINDS)[number]

const SHOWN = 10

interface Line {
  /** Null for all that are not counted separately. */
  readonly value: string | null
  readonly whole: number
  readonly delivered: number
  readonly bounced: number
  readonly failed: number
}

type Usage = components['schemas']['UsageResponse']

export function Split({ usage, after, before }: { readonly usage: Usage; readonly after: string; readonly before: string }) {
  const [{ by }, setFilters] = useFilters(['by'])
  const kind = KINDS.find((name) => name === by) ?? 'domain'
  const [first, last] = [usage.days.at(-1)?.day ?? '', usage.days[0]?.day ?? '']
  const from = usage.split_from
  const lines = linesOf(usage, kind)
  const isUncounted = kind !== 'provider' && from !== null && first < from
  return (
    <Section
      title={text.split[kind]}
      about={text.splitAbout[kind]}
      mark={<SegmentedControl size="xs" aria-label={text.splitBy} data={KINDS.map((value) => ({ value, label: text.splits[value] }))} value={kind} onChange={(value) => setFilters({ by: value === 'domain' ? undefined : value })} />}
    >
      {isUncounted && <Text size="sm" role="note">{last < from ? text.splitUncounted(utcDay(from)) : text.splitFrom(utcDay(from))}</Text>}
      {lines.length > 0
        ? <Lines key={kind} lines={lines} kind={kind} link={kind === 'tag' ? (tag) => ({ tag, after, before }) : null} />
        : !(isUncounted && last < from) && <Text size="sm">{text.splitNone[kind]}</Text>}
    </Section>
  )
}

function linesOf({ domains, tags, providers }: Usage, kind: Kind): readonly Line[] {
  if (kind === 'domain') return domains.map(({ domain, accepted, ...results }) => ({ ...results, value: domain, whole: accepted }))
  if (kind === 'tag') return tags.map(({ tag, accepted, ...results }) => ({ ...results, value: tag, whole: accepted }))
  return providers.map(({ provider, results: whole, ...results }) => ({ ...results, value: names[provider] ?? provider, whole }))
}

function Lines({ lines, kind, link }: {
  readonly lines: readonly Line[]
  readonly kind: Kind
  /** The messages of a value. */
  readonly link: ((value: string) => Readonly<Record<string, string>>) | null
}) {
  const [isWhole, setWhole] = useState(false)
  const columns = [kind === 'provider' ? text.splitColumns.results : text.splitColumns.accepted, text.splitColumns.delivered, text.splitColumns.bounced, text.splitColumns.failed]
  return (
    <>
      <WideTable label={text.splitTable} minWidth={420}>
        <Table.Thead>
          <Table.Tr>
            <Table.Th scope="col">{text.splits[kind]}</Table.Th>
            {columns.map((name) => <Table.Th key={name} scope="col" ta="right">{name}</Table.Th>)}
          </Table.Tr>
        </Table.Thead>
        <Table.Tbody>
          {(isWhole ? lines : lines.slice(0, SHOWN)).map(({ value, whole, delivered, bounced, failed }) => (
            <Table.Tr key={value ?? ''} className={classes.counts}>
              <Table.Th scope="row" fw={500} className={classes.value}>
                {value === null ? text.splitOthers[kind] : link === null ? <Foreign text={value} /> : <PageLink to={['messages']} search={link(value)}><Foreign text={value} /></PageLink>}
              </Table.Th>
              <Table.Td>{number(whole)}</Table.Td>
              {[delivered, bounced, failed].map((count, place) => <Table.Td key={place}><Counted count={count} whole={whole} /></Table.Td>)}
            </Table.Tr>
          ))}
        </Table.Tbody>
      </WideTable>
      {lines.length > SHOWN && !isWhole && <div><Button size="xs" variant="default" onClick={() => setWhole(true)}>{text.splitAll(number(lines.length))}</Button></div>}
    </>
  )
}

function Counted({ count, whole }: { readonly count: number; readonly whole: number }) {
  const part = share(count, whole)
  return <>{number(count)}{part !== null && <Text span inherit c="dimmed" className={classes.rate}>{percent(part)}</Text>}</>
}

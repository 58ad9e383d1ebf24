/** The records of a domain: values to publish, values in DNS, and copy buttons. */
import { Badge, Group, Paper, SimpleGrid, Stack, Text, Title } from '@mantine/core'
import { IconAlertTriangle, IconCircleCheck, IconCircleDashed, IconHelpCircle } from '@tabler/icons-react'
import type { ReactNode } from 'react'
import { nameWithin } from '../rules/zone-file'
import { text } from '../words/dns-records'
import { CopyField } from './Copy'
import classes from './parts.module.css'
import { StatusBadge, type Tone } from './Status'

export interface RecordShown {
  readonly purpose: 'ownership' | 'dkim_rsa' | 'dkim_ed25519' | 'return_path' | 'dmarc'
  readonly state: 'active' | 'pending' | 'previous'
  readonly type: string
  readonly name: string
  readonly value: string | null
  readonly required: boolean
  readonly result?: string | null
  readonly found?: readonly string[] | null
  readonly advice: string
}

const TONES: Readonly<Record<string, Tone>> = { found: 'good', missing: 'bad', unknown: 'warn' }
const ICONS: Readonly<Record<string, ReactNode>> = {
  found: <IconCircleCheck size={20} color="var(--mantine-color-teal-filled)" aria-hidden />,
  missing: <IconAlertTriangle size={20} color="var(--mantine-color-error)" aria-hidden />,
  unknown: <IconHelpCircle size={20} color="var(--mantine-color-dimmed)" aria-hidden />,
}

export function DnsRecords({ records, domain }: { readonly records: readonly RecordShown[]; readonly domain: string }) {
  return (
    <Stack gap="sm">
      {records.map((record) => <DnsRecord key={`${record.purpose} ${record.name}`} record={record} domain={domain} />)}
    </Stack>
  )
}

function DnsRecord({ record, domain }: { readonly record: RecordShown; readonly domain: string }) {
  const { purpose, state, name, value, result } = record
  const found = record.found ?? []
  const short = nameWithin(name, domain)
  // An optional record that is missing is not a fault.
  const tone = result === 'missing' && !record.required ? 'plain' : TONES[result ?? '']
  return (
    <Paper withBorder p="md" component="section" aria-label={text.record(text.purposes[purpose], name)} data-record={purpose} data-result={result ?? 'unchecked'}>
      <Stack gap="xs">
        <Group justify="space-between" gap="xs">
          <Group gap="xs" miw={0}>
            {(tone === 'plain' ? undefined : ICONS[result ?? '']) ?? <IconCircleDashed size={20} color="var(--mantine-color-dimmed)" aria-hidden />}
            <Title order={3} size="h5">{text.purposes[purpose]}</Title>
            <Badge variant="default" tt="none">{record.required ? text.required : value === null ? text.notYours : text.recommended}</Badge>
            {state !== 'active' && <Badge variant="default" tt="none">{text.states[state]}</Badge>}
          </Group>
          <StatusBadge state={result ?? ''} label={text.results[(result ?? 'unchecked') as keyof typeof text.results]} tone={tone ?? 'plain'} />
        </Group>
        <Text size="sm" c="dimmed">{text.why[purpose]}</Text>
        {value !== null && (
          <SimpleGrid cols={{ base: 1, md: 2 }} spacing="xs" verticalSpacing="xs" className={classes.top}>
            <Stack gap="xs">
              <CopyField name={text.name(record.type)} value={name} label />
              {short !== name && <CopyField name={text.shortName} value={short} label />}
            </Stack>
            <CopyField name={text.value} value={value} label />
          </SimpleGrid>
        )}
        {record.advice !== '' && <Text size="sm" className={classes.break} fw={result === 'missing' && record.required ? 600 : 400}>{record.advice}</Text>}
        {result === 'missing' && found.length > 0 && (
          <Stack gap={4}>
            <Text size="sm" fw={600}>{text.found}</Text>
            {found.map((there, index) => <CopyField key={index} name={text.foundValue(index + 1)} value={there} />)}
          </Stack>
        )}
      </Stack>
    </Paper>
  )
}

import { Group, Paper, SegmentedControl, Stack, Text, Title } from '@mantine/core'
import { useState } from 'react'
import type { components } from '../../api/schema'
import { HtmlFrame } from '../../parts/HtmlFrame'
import { Lines, Loaded } from '../../parts/States'
import { list } from '../../words/format'
import { text } from '../../words/templates'
import classes from './templates.module.css'

const WIDTHS = { phone: 360, desktop: 640 } as const
type Shown = keyof typeof text.widths
// A narrow screen shows the narrow width first.
const ROOMY = '(min-width: 48em)'

export function Preview({ query }: { readonly query: Parameters<typeof Loaded<components['schemas']['PreviewResponse']>>[0]['query'] }) {
  const [shown, setShown] = useState<Shown>(() => (matchMedia(ROOMY).matches ? 'desktop' : 'phone'))
  return (
    <Stack gap="sm" component="section" aria-label={text.preview} miw={0}>
      <Group justify="space-between">
        <Title order={2} size="h4">{text.preview}</Title>
        <SegmentedControl size="xs" value={shown} onChange={(chosen) => setShown(chosen as Shown)} data={Object.entries(text.widths).map(([value, label]) => ({ value, label }))} aria-label={text.width} />
      </Group>
      <Loaded query={query} skeleton={<Lines count={4} />}>
        {({ subject, html, text: plain, missing }) => (
          <Stack gap="xs" miw={0}>
            <Text fw={600} className={classes.text}>{subject}</Text>
            {missing.length > 0 && <Text size="sm">{text.missing(list(missing))}</Text>}
            {shown === 'text' && (plain === null ? <Text c="dimmed">{text.noText}</Text> : <Paper withBorder p="sm" className={classes.text}>{plain}</Paper>)}
            {shown !== 'text' && (html === null ? <Text c="dimmed">{text.noHtml}</Text> : <HtmlFrame html={html} title={text.previewOf} width={WIDTHS[shown]} height={420} />)}
          </Stack>
        )}
      </Loaded>
    </Stack>
  )
}

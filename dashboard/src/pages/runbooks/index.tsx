/** The runbooks of alerts and of posthouse doctor, from the package: for an engineer on call, without a login and while the service is down. */
import { Anchor, Code, Container, List, Stack, Text, Title } from '@mantine/core'
import { useEffect } from 'react'
import { RouterLink, useParam } from '../../parts/Link'
import classes from '../../parts/parts.module.css'
import { runbookBlocks, type Block, type Part } from '../../rules/runbook'
import { text } from '../../words/runbooks'
import { text as shell } from '../../words/shell'

const FILES = import.meta.glob<string>('../../../../docs/runbooks/*.md', { query: '?raw', import: 'default', eager: true })
const BOOKS: ReadonlyMap<string, readonly Block[]> = new Map(
  Object.entries(FILES).map(([path, page]) => [path.slice(path.lastIndexOf('/') + 1, -'.md'.length), runbookBlocks(page)]),
)

const titleOf = (blocks: readonly Block[]): string => blocks[0]?.parts.map((part) => part.text).join('') ?? ''

const INDEX = BOOKS.get('index') ?? []

export default function RunbooksPage() {
  const name = useParam('name')
  const found = BOOKS.get(name)
  const blocks = found ?? INDEX
  const title = titleOf(blocks)
  useEffect(() => {
    document.title = `${title} · ${shell.service}`
  }, [title])
  return (
    <Container component="main" size="md" py="xl">
      <Stack>
        <Title order={1} size="h2" className={classes.break ?? ''}>{title}</Title>
        {found === undefined && name !== '' && <Text>{text.unknown}</Text>}
        <Blocks blocks={blocks.slice(1)} />
        {blocks !== INDEX && <Text size="sm"><To name="">{text.all}</To></Text>}
      </Stack>
    </Container>
  )
}

function Blocks({ blocks }: { readonly blocks: readonly Block[] }) {
  return blocks.map(({ kind, parts }, place) => {
    const said = parts.map((part, position) => <Said key={position} part={part} />)
    if (kind === 'heading') return <Title key={place} order={2} size="h4">{said}</Title>
    return kind === 'item' ? <List key={place}><List.Item className={classes.break ?? ''}>{said}</List.Item></List> : <Text key={place} className={classes.break ?? ''}>{said}</Text>
  })
}

function Said({ part: { kind, text: said, to } }: { readonly part: Part }) {
  if (kind === 'code') return <Code>{said}</Code>
  if (kind === 'text') return said
  if (kind === 'strong') return <strong>{said}</strong>
  const name = to.replace('.md', '')
  // Other pages of the documentation are not in the package.
  return BOOKS.has(name) ? <To name={name}>{said}</To> : `${said} (docs/${to.replace('../', '')})`
}

function To({ name, children }: { readonly name: string; readonly children: string }) {
  return <Anchor inherit underline="always" renderRoot={(props) => <RouterLink {...props} to={name === '' ? '/runbooks' : `/runbooks/${name}`} />}>{children}</Anchor>
}

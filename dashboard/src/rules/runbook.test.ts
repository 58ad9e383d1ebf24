import { expect, test } from 'vitest'
import { runbookBlocks } from './runbook'

const PAGES = import.meta.glob<string>('../../../docs/runbooks/*.md', { query: '?raw', import: 'default', eager: true })

test('a page is read as blocks, with code and links', () => {
  const page = '# Name\n\nSeverity: low.\n\n## What to do\n\n- Start `posthouse run`,\n  then see [Other](other.md).\n- **Wait.**\n'
  expect(runbookBlocks(page).map(({ kind, parts }) => [kind, parts.map(({ text }) => text).join('|')])).toEqual([
    ['title', 'Name'], ['text', 'Severity: low.'], ['heading', 'What to do'], ['item', 'Start |posthouse run|, then see |Other|.'], ['item', 'Wait.'],
  ])
  expect(runbookBlocks(page)[3]?.parts[3]).toEqual({ kind: 'link', text: 'Other', to: 'other.md' })
})

test('the pages contain nothing that is not read', () => {
  expect(Object.keys(PAGES).length).toBeGreaterThan(20)
  for (const [name, page] of Object.entries(PAGES)) {
    const rest = runbookBlocks(page).flatMap(({ parts }) => parts).filter(({ kind }) => kind === 'text').map(({ text }) => text).join('\n')
    expect(rest, name).not.toMatch(/```|^\||^#|\*\*|`|\]\(|<\w/m)
  }
})

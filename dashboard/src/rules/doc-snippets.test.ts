import { expect, test } from 'vitest'
import page from '../../../docs/howto/receive-webhooks.md?raw'
import { docSnippets } from './doc-snippets'

test('code is read only from its section', () => {
  const other = '# A\n\n## One\n\n### X\n\n```sh\nno\n```\n\n## Two\n\nText\n\n### Python\n\n```python\nyes\n\nmore\n```\n\n### Empty\n\nText\n\n## Three\n'
  expect(docSnippets(other, 'Two')).toEqual([{ title: 'Python', code: 'yes\n\nmore' }])
  expect(docSnippets(other, 'Four')).toEqual([])
})

test('the page about webhooks verifies in six languages', () => {
  const found = docSnippets(page, 'Verify a signature')
  expect(found).toHaveLength(6)
  for (const { code } of found) expect(code).toContain('v1')
})

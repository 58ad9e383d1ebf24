/** Functions that verify a signature, from the documentation: they are tested there. */
import { Stack, Tabs, Text, Title } from '@mantine/core'
import page from '../../../../docs/howto/receive-webhooks.md?raw'
import { CodeBlock } from '../../parts/Copy'
import { docSnippets } from '../../rules/doc-snippets'
import { text } from '../../words/webhooks'

const SECTION = 'Verify a signature'
const snippets = docSnippets(page, SECTION)

export default function Verify() {
  return (
    <Stack gap="sm" component="section" aria-label={text.verify}>
      <Title order={2} size="h4">{text.verify}</Title>
      <Text size="sm">{text.verifyWhy}</Text>
      <Tabs defaultValue={snippets[0]?.title ?? null} keepMounted={false}>
        <Tabs.List>{snippets.map(({ title }) => <Tabs.Tab key={title} value={title}>{title}</Tabs.Tab>)}</Tabs.List>
        {snippets.map(({ title, code }) => <Tabs.Panel key={title} value={title} pt="xs"><CodeBlock code={code} name={title} /></Tabs.Panel>)}
      </Tabs>
    </Stack>
  )
}

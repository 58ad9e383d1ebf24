/** The requests that a page made, as curl and as Python. */
import { Accordion, Badge, Drawer, Group, Stack, Tabs, Text } from '@mantine/core'
import { asCurl, asPython, type MadeRequest } from '../rules/by-api'
import { text } from '../words/parts'
import { CodeBlock } from './Copy'
import classes from './parts.module.css'

export default function ByApi({ opened, onClose, requests, origin }: {
  readonly opened: boolean
  readonly onClose: () => void
  readonly requests: readonly MadeRequest[]
  readonly origin: string
}) {
  return (
    <Drawer opened={opened} onClose={onClose} position="right" size="xl" title={text.byApi} closeButtonProps={{ 'aria-label': text.close }}>
      <Stack>
        <Text size="sm">{requests.length === 0 ? text.byApiNothing : text.byApiWhy}</Text>
        <Accordion variant="separated" order={3}>
          {requests.map((request) => (
            <Accordion.Item key={`${request.method} ${request.path}`} value={`${request.method} ${request.path}`}>
              <Accordion.Control>
                <Group gap="xs" wrap="nowrap">
                  <Badge variant="default">{request.method}</Badge>
                  <Text size="sm" className={classes.break}>{request.path}</Text>
                </Group>
              </Accordion.Control>
              <Accordion.Panel><Shown request={request} origin={origin} /></Accordion.Panel>
            </Accordion.Item>
          ))}
        </Accordion>
      </Stack>
    </Drawer>
  )
}

function Shown({ request, origin }: { readonly request: MadeRequest; readonly origin: string }) {
  return (
    <Tabs defaultValue="curl" keepMounted={false}>
      <Tabs.List>
        <Tabs.Tab value="curl">{text.curl}</Tabs.Tab>
        <Tabs.Tab value="python">{text.python}</Tabs.Tab>
      </Tabs.List>
      {request.body?.kind === 'hidden' && <Text size="sm" mt="xs">{text.bodyHidden}</Text>}
      <Tabs.Panel value="curl" pt="xs"><CodeBlock code={asCurl(request, origin)} name={text.curl} /></Tabs.Panel>
      <Tabs.Panel value="python" pt="xs"><CodeBlock code={asPython(request, origin)} name={text.python} /></Tabs.Panel>
      {request.requestId !== null && <Text size="xs" c="dimmed" mt="xs">{text.requestId} {request.requestId}</Text>}
    </Tabs>
  )
}

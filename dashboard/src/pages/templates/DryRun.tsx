/** The draft as the preview rendered it: all checks of a real request, or an email to oneself. */
import { Alert, Button, Group, List, SimpleGrid, Stack, Text, TextInput, Title } from '@mantine/core'
import { useState } from 'react'
import { useMe, useRead, useWrite } from '../../api/queries'
import type { components } from '../../api/schema'
import classes from '../../parts/parts.module.css'
import { notify } from '../../parts/notify'
import { Allowed } from '../../parts/Role'
import { Failure } from '../../parts/States'
import { senderDomain } from '../../rules/sender-domain'
import { bytes, number } from '../../words/format'
import { text } from '../../words/templates'

type Rendered = components['schemas']['PreviewResponse']
type Result = components['schemas']['DryRunResponse']

export function DryRun({ rendered }: { readonly rendered: Rendered | undefined }) {
  const me = useMe()
  const domains = useRead(['domains', 'first'], (api) => api.GET('/v1/domains', { params: { query: { limit: 100 } } }), { every: false })
  const domain = senderDomain(domains.data?.domains)
  const [from, setFrom] = useState<string | null>(null)
  const [to, setTo] = useState(me.user.email)
  const sender = from ?? (domain === undefined ? '' : `hello@${domain}`)
  const run = useWrite((api) => api.POST('/v1/emails/dry-run', {
    body: {
      from: sender, to, subject: rendered?.subject ?? null, text: rendered?.text ?? null, html: rendered?.html ?? null,
      cc: null, bcc: null, reply_to: null, template: null, variables: null, headers: null, tags: null, attachments: null, metadata: null, send_at: null, content: null,
    },
  }))
  const send = useWrite(
    (api) => api.POST('/v1/test-email', { body: { from: sender, subject: rendered?.subject ?? null, text: rendered?.text ?? null, html: rendered?.html ?? null } as never }),
    ['messages', 'account', 'ledger', 'progress'],
  )
  return (
    <Stack gap="sm" component="section" aria-label={text.dryRun}>
      <Title order={2} size="h4">{text.dryRun}</Title>
      <Text size="sm" c="dimmed">{text.dryRunWhy}</Text>
      <form onSubmit={(event) => { event.preventDefault(); run.mutate() }}>
        <Stack gap="xs">
          <SimpleGrid cols={{ base: 1, sm: 2 }} spacing="xs">
            <TextInput label={text.from} required value={sender} onChange={(event) => setFrom(event.currentTarget.value)} autoComplete="off" />
            <TextInput label={text.to} required value={to} onChange={(event) => setTo(event.currentTarget.value)} autoComplete="off" />
          </SimpleGrid>
          <Group>
            <Allowed to="dryRunEmail" unless={rendered === undefined ? text.noPreview : null}>
              {(control) => <Button {...control} type="submit" variant="default" loading={run.isPending}>{text.run}</Button>}
            </Allowed>
            <Allowed to="sendTestEmail" unless={rendered === undefined ? text.noPreview : null}>
              {(control) => <Button {...control} variant="default" loading={send.isPending} onClick={() => send.mutate(undefined, { onSuccess: () => notify(text.sentToMe(me.user.email)) })}>{text.sendToMe}</Button>}
            </Allowed>
          </Group>
        </Stack>
      </form>
      {send.error !== null && <Failure error={send.error} title={text.sendToMe} />}
      {run.error !== null && <Failure error={run.error} title={text.dryRun} />}
      {run.data !== undefined && <Shown result={run.data} />}
    </Stack>
  )
}

function Shown({ result }: { readonly result: Result }) {
  return (
    <Alert color={result.would_accept ? 'teal' : 'red'} title={result.would_accept ? text.accepted : text.refused} role="status" data-dry-run={result.would_accept ? 'accepted' : 'refused'}>
      <Stack gap="xs">
        {result.refusal !== null && <Text size="sm" className={classes.break}>{result.refusal.error}</Text>}
        {result.size_bytes !== null && <Text size="sm">{text.size}: {bytes(result.size_bytes)}</Text>}
        <Text size="sm">{text.credits}: {text.creditsOf(number(result.credits.needed), number(result.credits.available))}</Text>
        {result.warnings.length > 0 && (
          <>
            <Text size="sm" fw={600}>{text.warnings}</Text>
            <List size="sm">{result.warnings.map((warning) => <List.Item key={warning} className={classes.break}>{warning}</List.Item>)}</List>
          </>
        )}
      </Stack>
    </Alert>
  )
}

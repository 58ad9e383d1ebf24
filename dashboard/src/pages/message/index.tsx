/** A message: its result and the reason, its next try, and its content. */
import { Alert, Badge, Button, Grid, Group, Modal, Paper, Stack, Text, Title } from '@mantine/core'
import { useState, type ReactNode } from 'react'
import { useRead } from '../../api/queries'
import { useDelivered } from '../../parts/captures'
import { CodeBlock, CopyButton, CopyField } from '../../parts/Copy'
import { PageLink, useParam } from '../../parts/Link'
import { PageHeader } from '../../parts/PageHeader'
import { Lines, Loaded } from '../../parts/States'
import { StatusBadge } from '../../parts/Status'
import { Moment } from '../../parts/Time'
import { unturned } from '../../rules/foreign-text'
import { askAgainMs } from '../../rules/message-story'
import { supportReport } from '../../rules/support-report'
import { text } from '../../words/message'
import { text as shared } from '../../words/parts'
import { Changes } from './Changes'
import { Content } from './Content'
import { Credits, Webhooks } from './Consequences'
import { Delivery, Fact } from './Delivery'
import classes from './message.module.css'
import { Neighbours } from './Neighbours'
import { sentence } from './story'
import type { Message } from './types'

export default function MessagePage() {
  const id = useParam('id')
  const read = useRead(['message', id], (api) => api.GET('/v1/messages/{id}', { params: { path: { id } } }), {
    every: (data) => (data === undefined ? 30_000 : askAgainMs(data.message.recipients, data.message.created_at, new Date())),
  })
  return (
    <>
      {read.data === undefined && <PageHeader title={text.title} />}
      <Loaded query={read} skeleton={<Lines />}>
        {({ message }) => <Whole key={message.id} message={message as Message} />}
      </Loaded>
    </>
  )
}

function Whole({ message }: { readonly message: Message }) {
  const captures = useDelivered() === 'captured'
  const subject = message.subject ?? null
  return (
    <>
      <Neighbours id={message.id} />
      <PageHeader
        title={unturned(subject ?? text.forgottenSubject) || text.noSubject}
        about={
          <Group gap="xs">
            <StatusBadge state={message.state} />
            <Text span size="sm" role="status" className={classes.break}>{sentence(message, captures)}</Text>
            {subject !== null && subject !== '' && <CopyButton value={subject} name={text.detail.subject} />}
          </Group>
        }
        actions={<><Changes message={message} /><SupportReport message={message} /></>}
      />
      {message.is_shortened && <Alert color="yellow" mb="md">{text.shortened}</Alert>}
      <Grid gap="lg">
        <Grid.Col span={{ base: 12, lg: 8 }}>
          <Stack>
            <Section title={text.delivery}><Delivery message={message} /></Section>
            <Section title={text.content}><Content id={message.id} isStored={message.headers !== null} isForgotten={Boolean(message.content)} /></Section>
          </Stack>
        </Grid.Col>
        <Grid.Col span={{ base: 12, lg: 4 }}>
          <Stack>
            <Section title={text.details}><Details message={message} /></Section>
            <Section title={text.webhooks}><Webhooks message={message} /></Section>
            <Section title={text.credits}><Credits id={message.id} /></Section>
          </Stack>
        </Grid.Col>
      </Grid>
    </>
  )
}

function Section({ title, children }: { readonly title: string; readonly children: ReactNode }) {
  return (
    <Paper withBorder p="md" component="section" aria-label={title}>
      <Title order={2} size="h4" mb="sm">{title}</Title>
      {children}
    </Paper>
  )
}

function Details({ message }: { readonly message: Message }) {
  return (
    <dl className={classes.facts}>
      <Fact name={text.detail.id} value={<CopyField value={message.id} name={text.detail.id} />} />
      <Fact name={text.detail.request} value={<CopyField value={message.accepted_request_id} name={text.detail.request} />} />
      <Fact name={text.detail.accepted} value={<Moment at={message.created_at} />} />
      {message.send_at != null && <Fact name={text.detail.sendAt} value={<Moment at={message.send_at} />} />}
      <Fact name={text.detail.from} value={message.from} />
      {message.envelope_from !== message.from && <Fact name={text.detail.envelope} value={message.envelope_from} />}
      <Fact name={text.detail.way} value={text.ways[message.source]} />
      <Fact name={text.detail.credential} value={<PageLink to={['messages']} search={{ credential_id: message.credential.id }}>{message.credential.name ?? message.credential.id}</PageLink>} />
      {message.template !== null && <Fact name={text.detail.template} value={<PageLink to={['templates', message.template]}>{message.template}</PageLink>} />}
      {typeof message.resent_from === 'string' && <Fact name={text.detail.resentFrom} value={<PageLink to={['messages', message.resent_from]}>{message.resent_from}</PageLink>} />}
      {message.tags.length > 0 && <Fact name={text.detail.tags} value={message.tags.map((tag) => <PageLink key={tag} to={['messages']} search={{ tag }}><Badge variant="default" tt="none" mr={4}>{tag}</Badge></PageLink>)} />}
    </dl>
  )
}

function SupportReport({ message }: { readonly message: Message }) {
  const [isOpen, setOpen] = useState(false)
  return (
    <>
      <Button variant="default" aria-haspopup="dialog" onClick={() => setOpen(true)}>{text.report}</Button>
      <Modal opened={isOpen} onClose={() => setOpen(false)} title={text.report} size="lg" closeButtonProps={{ 'aria-label': shared.close }}>
        <Stack>
          <Text size="sm">{text.reportWhy}</Text>
          <CodeBlock code={supportReport(message, location.origin)} name={text.reportText} />
        </Stack>
      </Modal>
    </>
  )
}

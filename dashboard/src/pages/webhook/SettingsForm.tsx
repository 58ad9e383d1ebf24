import { Button, Checkbox, Group, Paper, Stack, Switch, TextInput } from '@mantine/core'
import { useState } from 'react'
import { useWrite } from '../../api/queries'
import type { components } from '../../api/schema'
import { notify } from '../../parts/notify'
import { Allowed, useMay } from '../../parts/Role'
import { Failure } from '../../parts/States'
import { text } from '../../words/webhook'
import { WEBHOOK_TYPES as EVENTS } from './log'

export function SettingsForm({ webhook, onSecret }: {
  readonly webhook: components['schemas']['Webhook'] | null
  readonly onSecret: (secret: string) => void
}) {
  const [url, setUrl] = useState(webhook?.url ?? '')
  const [events, setEvents] = useState<string[]>(webhook?.events ?? [...EVENTS])
  const [enabled, setEnabled] = useState(webhook?.enabled ?? true)
  const mayNot = !useMay('saveWebhook')
  const save = useWrite((api) => api.PUT('/v1/webhook', { body: { url: url.trim(), events, enabled } }), ['webhook', 'deliveries', 'progress'])
  return (
    <Paper withBorder p="md">
      <form
        onSubmit={(event) => {
          event.preventDefault()
          save.mutate(undefined, {
            onSuccess: ({ secret }) => {
              notify(text.saved)
              if (secret != null) onSecret(secret)
            },
          })
        }}
      >
        <Stack>
          <TextInput type="url" label={text.url} description={text.urlHelp} placeholder={text.urlPlaceholder} required maxLength={2048} value={url} onChange={(event) => setUrl(event.currentTarget.value)} readOnly={mayNot} spellCheck={false} autoComplete="off" />
          <Checkbox.Group label={text.events} value={events} onChange={setEvents}>
            <Group mt={4}>{EVENTS.map((event) => <Checkbox key={event} value={event} label={text.eventNames[event]} disabled={mayNot} />)}</Group>
          </Checkbox.Group>
          <Switch label={text.enabled} description={text.enabledHelp} checked={enabled} onChange={(event) => setEnabled(event.currentTarget.checked)} disabled={mayNot} />
          {save.error !== null && <Failure error={save.error} title={text.save} />}
          <Group justify="flex-end">
            <Allowed to="saveWebhook">
              {(control) => <Button {...control} type="submit" loading={save.isPending} disabled={control.disabled || events.length === 0}>{text.save}</Button>}
            </Allowed>
          </Group>
        </Stack>
      </form>
    </Paper>
  )
}

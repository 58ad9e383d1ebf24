import { Button, Checkbox, Group, NumberInput, Stack, Text } from '@mantine/core'
import { useState } from 'react'
import { useRead, useWrite } from '../../api/queries'
import type { components } from '../../api/schema'
import { notify } from '../../parts/notify'
import { Failure, Lines, Loaded } from '../../parts/States'
import { StatusBadge } from '../../parts/Status'
import { text } from '../../words/settings'

type Alert = components['schemas']['Alert']
type Chosen = Readonly<Record<string, { readonly isChosen: boolean; readonly threshold: number | null }>>

export function Alerts() {
  const alerts = useRead(['alerts'], (api) => api.GET('/v1/account/alerts'), { every: false })
  return (
    <Stack gap="sm">
      <Text size="sm" c="dimmed">{text.alertsAbout}</Text>
      <Loaded query={alerts} skeleton={<Lines count={4} />}>
        {(data) => <Form alerts={data.alerts} />}
      </Loaded>
    </Stack>
  )
}

function Form({ alerts }: { readonly alerts: readonly Alert[] }) {
  // Typed limits stay as they are when the list is read again.
  const [chosen, setChosen] = useState<Chosen>(() =>
    Object.fromEntries(alerts.map(({ kind, chosen: isChosen, threshold }) => [kind, { isChosen, threshold }])))
  const save = useWrite((api) => api.PUT('/v1/account/alerts', { body: { alerts: wanted(chosen) } }), ['alerts'])
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault()
        save.mutate(undefined, { onSuccess: () => notify(text.alertsSaved) })
      }}
    >
      <Stack gap="sm">
        {alerts.map((alert) => (
          <Line
            key={alert.kind}
            alert={alert}
            isChosen={chosen[alert.kind]?.isChosen ?? false}
            threshold={chosen[alert.kind]?.threshold ?? null}
            change={(isChosen, threshold) => setChosen({ ...chosen, [alert.kind]: { isChosen, threshold } })}
          />
        ))}
        {save.error !== null && <Failure error={save.error} />}
        <Button type="submit" loading={save.isPending} w="fit-content">{text.saveAlerts}</Button>
      </Stack>
    </form>
  )
}

function wanted(chosen: Chosen) {
  return Object.entries(chosen)
    .filter(([, { isChosen }]) => isChosen)
    .map(([kind, { threshold }]) => ({ kind: kind as Alert['kind'], threshold }))
}

function Line({ alert, isChosen, threshold, change }: {
  readonly alert: Alert
  readonly isChosen: boolean
  readonly threshold: number | null
  readonly change: (isChosen: boolean, threshold: number | null) => void
}) {
  const name = text.kinds[alert.kind]
  return (
    <Group justify="space-between" gap="sm">
      <Group gap="xs">
        <Checkbox label={name} checked={isChosen} onChange={(event) => change(event.currentTarget.checked, threshold)} />
        {alert.raised.length > 0 && <StatusBadge state="raised" tone="bad" label={text.raisedSince} />}
      </Group>
      {alert.unit !== null && (
        <NumberInput
          w={170} size="xs" aria-label={text.threshold(name)} disabled={!isChosen} suffix={` ${text.units[alert.unit as keyof typeof text.units]}`}
          value={threshold ?? ''} onChange={(value) => change(isChosen, typeof value === 'number' ? value : null)}
        />
      )}
    </Group>
  )
}

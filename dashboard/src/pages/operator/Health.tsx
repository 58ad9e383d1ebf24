import { Anchor, Group, Stack, Text } from '@mantine/core'
import { useRead } from '../../api/queries'
import type { components } from '../../api/schema'
import { ItemList, ItemRow } from '../../parts/Items'
import { RouterLink } from '../../parts/Link'
import { PageHeader } from '../../parts/PageHeader'
import { Section } from '../../parts/Section'
import classes from '../../parts/parts.module.css'
import { Loaded } from '../../parts/States'
import { StatusBadge, type Tone } from '../../parts/Status'
import { Ago } from '../../parts/Time'
import { health as text } from '../../words/operator'

type Check = components['schemas']['OperatorCheck']

const TONES: Readonly<Record<Check['severity'], Tone>> = { ok: 'good', warning: 'warn', critical: 'bad' }

export default function HealthPage() {
  const read = useRead(['operator', 'health'], (api) => api.GET('/v1/operator/health'))
  return (
    <>
      <PageHeader title={text.title} about={<>{text.about} <Runbook to="/runbooks">{text.runbooks}</Runbook></>} />
      <Loaded query={read}>
        {({ checks, checked_at }) => {
          const wrong = checks.filter(({ is_well }) => !is_well)
          return (
            <Stack>
              <Text size="sm" c="dimmed">{text.checked} <Ago at={checked_at} /></Text>
              <Section title={text.wrong}>{wrong.length === 0 ? <Text size="sm">{text.allWell}</Text> : <Checks label={text.wrong} checks={wrong} />}</Section>
              <Section title={text.well}><Checks label={text.well} checks={checks.filter(({ is_well }) => is_well)} /></Section>
            </Stack>
          )
        }}
      </Loaded>
    </>
  )
}

function Runbook({ to, children }: { readonly to: string; readonly children: string }) {
  return <Anchor fz="sm" underline="always" renderRoot={(props) => <RouterLink {...props} to={to} />}>{children}</Anchor>
}

function Checks({ label, checks }: { readonly label: string; readonly checks: readonly Check[] }) {
  return (
    <ItemList label={label}>
      {checks.map((check) => (
        <ItemRow key={`${check.check} ${check.found}`}>
          <Stack gap={2} miw={0} flex="1 1 280px">
            <Group gap="xs">
              <Text fw={600} className={classes.break}>{check.check}</Text>
              <StatusBadge state={check.severity} label={text.severities[check.severity]} tone={TONES[check.severity]} />
            </Group>
            <Text size="sm" className={classes.break}>{check.found}</Text>
            {!check.is_well && check.why !== '' && <Text size="sm" className={classes.break}>{text.why(check.why)}</Text>}
            {check.runbook !== null && <Runbook to={`/runbooks/${check.runbook}`}>{text.runbook}</Runbook>}
            {!check.is_well && check.advice !== '' && <Text size="sm" className={classes.break}>{text.advice(check.advice)}</Text>}
          </Stack>
        </ItemRow>
      ))}
    </ItemList>
  )
}

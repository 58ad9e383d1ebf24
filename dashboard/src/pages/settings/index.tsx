import { Paper, Stack, Title } from '@mantine/core'
import type { ReactNode } from 'react'
import { PageHeader } from '../../parts/PageHeader'
import { useMay } from '../../parts/Role'
import { text } from '../../words/settings'
import { AccountName } from './AccountName'
import { Alerts } from './Alerts'
import { Password } from './Password'
import { SecondFactor } from './SecondFactor'
import { Sessions } from './Sessions'

export default function SettingsPage() {
  const mayChoose = useMay('getAlerts')
  return (
    <>
      <PageHeader title={text.title} about={text.about} />
      <Stack maw={860}>
        <Section title={text.secondFactor}><SecondFactor /></Section>
        <Section title={text.password}><Password /></Section>
        <Section title={text.sessions}><Sessions /></Section>
        {mayChoose && <Section title={text.alerts}><Alerts /></Section>}
        <Section title={text.account}><AccountName /></Section>
      </Stack>
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

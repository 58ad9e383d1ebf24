import { Tabs } from '@mantine/core'
import { useFilters } from '../../parts/Link'
import { PageHeader } from '../../parts/PageHeader'
import { text } from '../../words/keys'
import { Credentials } from './Credentials'
import { Keys } from './Keys'

export default function KeysPage() {
  const [{ tab }, setFilters] = useFilters(['tab'] as const)
  return (
    <>
      <PageHeader title={text.title} about={text.about} />
      <Tabs value={tab === 'smtp' ? 'smtp' : 'keys'} onChange={(chosen) => setFilters({ tab: chosen === 'smtp' ? 'smtp' : undefined })} keepMounted={false}>
        <Tabs.List mb="md">
          <Tabs.Tab value="keys">{text.keys}</Tabs.Tab>
          <Tabs.Tab value="smtp">{text.credentials}</Tabs.Tab>
        </Tabs.List>
        <Tabs.Panel value="keys"><Keys /></Tabs.Panel>
        <Tabs.Panel value="smtp"><Credentials /></Tabs.Panel>
      </Tabs>
    </>
  )
}

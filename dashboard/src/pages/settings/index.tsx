import { PageHeader } from '../../parts/PageHeader'
import { text } from '../../words/settings'

export default function SettingsPage() {
  return <PageHeader title={text.title} />
}

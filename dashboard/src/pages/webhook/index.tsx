import { PageHeader } from '../../parts/PageHeader'
import { text } from '../../words/webhook'

export default function WebhookPage() {
  return <PageHeader title={text.title} />
}

import { PageHeader } from '../../parts/PageHeader'
import { text } from '../../words/messages'

export default function MessagesPage() {
  return <PageHeader title={text.title} />
}

import { PageHeader } from '../../parts/PageHeader'
import { text } from '../../words/message'

export default function MessagePage() {
  return <PageHeader title={text.title} />
}

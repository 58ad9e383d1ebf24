import { PageHeader } from '../../parts/PageHeader'
import { text } from '../../words/suppressions'

export default function SuppressionsPage() {
  return <PageHeader title={text.title} />
}

import { PageHeader } from '../../parts/PageHeader'
import { text } from '../../words/templates'

export default function TemplatesPage() {
  return <PageHeader title={text.title} />
}

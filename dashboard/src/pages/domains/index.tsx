import { PageHeader } from '../../parts/PageHeader'
import { text } from '../../words/domains'

export default function DomainsPage() {
  return <PageHeader title={text.title} />
}

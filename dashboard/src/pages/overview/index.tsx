import { PageHeader } from '../../parts/PageHeader'
import { text } from '../../words/overview'

export default function OverviewPage() {
  return <PageHeader title={text.title} />
}

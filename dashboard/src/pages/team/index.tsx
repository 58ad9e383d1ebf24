import { PageHeader } from '../../parts/PageHeader'
import { text } from '../../words/team'

export default function TeamPage() {
  return <PageHeader title={text.title} />
}

import { PageHeader } from '../../parts/PageHeader'
import { text } from '../../words/keys'

export default function KeysPage() {
  return <PageHeader title={text.title} />
}

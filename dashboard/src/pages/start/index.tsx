import { PageHeader } from '../../parts/PageHeader'
import { text } from '../../words/start'

export default function StartPage() {
  return <PageHeader title={text.title} />
}

import { PageHeader } from '../../parts/PageHeader'
import { text } from '../../words/log'

export default function LogPage() {
  return <PageHeader title={text.title} />
}

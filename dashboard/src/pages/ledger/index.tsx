import { PageHeader } from '../../parts/PageHeader'
import { text } from '../../words/ledger'

export default function LedgerPage() {
  return <PageHeader title={text.title} />
}

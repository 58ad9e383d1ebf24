/** Stands in for a page that the user may not see, and says which role may. */
import { PageHeader } from '../parts/PageHeader'
import { Empty } from '../parts/States'
import { text } from '../words/shell'

export default function Forbidden({ title, reason }: { readonly title: string; readonly reason: string }) {
  return (
    <div data-state="forbidden">
      <PageHeader title={title} />
      <Empty title={text.forbidden}>{reason}</Empty>
    </div>
  )
}

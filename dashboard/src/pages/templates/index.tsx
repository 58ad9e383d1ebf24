import { useParam } from '../../parts/Link'
import { TemplateDetail } from './TemplateDetail'
import { TemplateList } from './TemplateList'

export default function TemplatesPage() {
  const alias = useParam('alias')
  return alias === '' ? <TemplateList /> : <TemplateDetail key={alias} alias={alias} />
}

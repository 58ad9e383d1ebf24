import { Code, Group } from '@mantine/core'
import { useRead } from '../../api/queries'
import { PageLink } from '../../parts/Link'
import { PageHeader } from '../../parts/PageHeader'
import { Loaded } from '../../parts/States'
import { text } from '../../words/templates'
import { PublishedBadge } from './TemplateList'
import { TemplateActions } from './TemplateActions'
import { Workbench } from './Workbench'

export function TemplateDetail({ alias }: { readonly alias: string }) {
  const template = useRead(['template', alias], (api) => api.GET('/v1/templates/{alias}', { params: { path: { alias } } }))
  const present = template.data?.template
  return (
    <>
      <PageLink to={['templates']} size="sm">{text.back}</PageLink>
      <PageHeader
        title={present?.name ?? alias}
        about={present && <Group gap="xs"><PublishedBadge published={present.published_version} /><Code>{present.alias}</Code></Group>}
        actions={present && <TemplateActions alias={present.alias} name={present.name} />}
      />
      <Loaded query={template}>{({ template: shown }) => <Workbench template={shown} />}</Loaded>
    </>
  )
}

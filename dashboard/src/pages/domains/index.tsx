import { useParam } from '../../parts/Link'
import { DomainDetail } from './DomainDetail'
import { DomainList } from './DomainList'

export default function DomainsPage() {
  const name = useParam('name')
  return name === '' ? <DomainList /> : <DomainDetail key={name} name={name} />
}

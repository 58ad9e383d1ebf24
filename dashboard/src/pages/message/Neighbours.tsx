/** The way back to the list, and to the messages before and after this one in it. */
import { Button, Group } from '@mantine/core'
import { useHotkeys } from '@mantine/hooks'
import { useAccountId } from '../../api/queries'
import { lastList, type LastList } from '../../api/last-list'
import { useStore } from '../../api/store'
import { PageLink, useGo } from '../../parts/Link'
import { text } from '../../words/message'

const NONE: Pick<LastList, 'ids' | 'search'> = { ids: [], search: {} }

export function Neighbours({ id }: { readonly id: string }) {
  const last = useStore(lastList)
  const account = useAccountId()
  const go = useGo()
  const { ids, search } = last.account === account ? last : NONE
  const place = ids.indexOf(id)
  const [newer, older] = place < 0 ? [] : [ids[place - 1], ids[place + 1]]
  const open = (wanted: string | undefined) => () => { if (wanted !== undefined) go(['messages', wanted]) }
  useHotkeys([['j', open(older)], ['k', open(newer)]])
  return (
    <Group justify="space-between" gap="xs" mb={4}>
      <PageLink to={['messages']} search={search} size="sm">{text.back}</PageLink>
      {place >= 0 && (
        <Group gap={4}>
          <Button size="compact-xs" variant="subtle" disabled={newer === undefined} aria-keyshortcuts="k" onClick={open(newer)}>{text.newer}</Button>
          <Button size="compact-xs" variant="subtle" disabled={older === undefined} aria-keyshortcuts="j" onClick={open(older)}>{text.older}</Button>
        </Group>
      )}
    </Group>
  )
}

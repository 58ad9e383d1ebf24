/** Whether updates arrive automatically. */
import { Badge, Tooltip } from '@mantine/core'
import { reachable } from '../api/client'
import { live } from '../api/live'
import { useStore } from '../api/store'
import { text } from '../words/shell'

export function LiveMark() {
  const state = useStore(live)
  const isReachable = useStore(reachable)
  if (!isReachable) return <Badge color="red.9" variant="filled" tt="none" visibleFrom="md">{text.offline}</Badge>
  if (state === 'live') return <Badge color="teal" variant="dot" tt="none" fw={400} visibleFrom="md" data-live="live">{text.live}</Badge>
  if (state === 'connecting') return null
  return (
    <Tooltip label={text.polling} multiline maw={260}>
      <Badge color="gray" variant="filled" tt="none" visibleFrom="md" tabIndex={0} data-live="polling">{text.pollingShort}</Badge>
    </Tooltip>
  )
}

/** Checks of a domain's DNS: when the user asks, and repeatedly while the page is visible and records are missing. */
import { useEffect } from 'react'
import { useWrite } from '../../api/queries'
import { pause } from '../../rules/again'

// The service takes a check of a domain every 5 seconds.
const GAP_MS = 5_000
const WATCH_MS = 10_000
const CHANGES = ['domain', 'domains', 'progress'] as const

/** A refusal because of a recent check, by this page or another, is not a failure: this check follows it. */
export function useCheck(name: string) {
  return useWrite(async (api) => {
    const check = () => api.POST('/v1/domains/{name}/verify', { params: { path: { name } } })
    const first = await check()
    if (first.response.status !== 429) return first
    await pause(GAP_MS)
    return check()
  }, CHANGES)
}

export function useWatch(name: string, isNeeded: boolean): void {
  const { mutate } = useWrite((api) => api.POST('/v1/domains/{name}/verify', { params: { path: { name } } }), CHANGES)
  useEffect(() => {
    if (!isNeeded) return
    // A refused check says nothing new: the next follows.
    const look = () => {
      if (document.visibilityState === 'visible') mutate()
    }
    look()
    const timer = setInterval(look, WATCH_MS)
    return () => clearInterval(timer)
  }, [isNeeded, mutate])
}

/** Checks the domain's DNS again and again while the page is looked at, until there is nothing left to find. */
import { useEffect } from 'react'
import { useWrite } from '../../api/queries'

// The service takes a check of a domain every 5 seconds.
const CHECK_MS = 10_000

export function useCheck(name: string) {
  return useWrite((api) => api.POST('/v1/domains/{name}/verify', { params: { path: { name } } }), ['domain', 'domains', 'progress'])
}

export function useWatch(check: ReturnType<typeof useCheck>, isNeeded: boolean): void {
  const { mutate } = check
  useEffect(() => {
    if (!isNeeded) return
    // A check that is refused because another was made just before says nothing new: the next follows.
    const look = () => {
      if (document.visibilityState === 'visible') mutate()
    }
    look()
    const timer = setInterval(look, CHECK_MS)
    return () => clearInterval(timer)
  }, [isNeeded, mutate])
}

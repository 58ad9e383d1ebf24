/** A part that is loaded when it is first shown: while the service is away it is asked for again, and the page stays. */
import { lazy } from 'react'

const AGAIN_MS = 3_000
// After a minute the page says that it failed: the file may belong to an older version of the service.
const TRIES_MAX = 20

export const later: typeof lazy = (load) => lazy(() => patiently(load))

async function patiently<T>(load: () => Promise<T>): Promise<T> {
  for (let tries = 1; ; tries += 1) {
    try {
      return await load()
    } catch (error) {
      if (tries === TRIES_MAX) throw error
      await new Promise((resolve) => setTimeout(resolve, AGAIN_MS))
    }
  }
}

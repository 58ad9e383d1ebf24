/** A part that is loaded when it is first shown: while the service can't be reached, loading is tried again, and the page stays. */
import { lazy } from 'react'
import { again } from '../rules/again'

const AGAIN_MS = 3_000
// After a minute the page says that it failed: the file may belong to an older version of the service.
const TRIES_MAX = 20

export const later: typeof lazy = (load) => lazy(() => again(load, AGAIN_MS, (_, tries) => tries < TRIES_MAX))

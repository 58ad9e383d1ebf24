/**
 * Hints of `GET /v1/live`: one stream per browser and account, since HTTP/1.1 allows six connections. The tab that holds
 * the lock reads it and passes hints on to the others. Without a stream, pages ask every 30 s and the shell says so.
 */
import { pause } from '../rules/again'
import { hintOf, readEvents, type Hint } from '../rules/event-stream'
import { isTemporary, Refusal } from '../rules/refusal'
import { reachable, stream } from './client'
import { invalidate, type Key } from './queries'
import { Store } from './store'

export const live = new Store<'connecting' | 'live' | 'polling'>('connecting')

const WAIT_MS_MAX = 30_000
// A service that can't be reached is asked this often, as the banner says; after an answer, everything is read again.
const UNREACHABLE_MS = 3_000
// Within this time, other tabs learn that the tab whose stream failed has none.
const STATE_MS = 5_000
// A hint may arrive before a filter can read its row, and many arrive at the same time: they are collected for this long.
const COLLECT_MS = 150

type Note = { readonly kind: 'hint'; readonly hint: Hint } | { readonly kind: 'state'; readonly isLive: boolean }

const CHANGED: Readonly<Record<'accepted' | 'final', readonly Key[0][]>> = {
  accepted: ['messages', 'account', 'ledger', 'progress'],
  final: ['messages', 'account', 'ledger', 'events', 'usage', 'reasons', 'progress', 'deliveries', 'suppressions'],
}

/** Runs until the returned function is called. */
export function watch(account: string): () => void {
  const leaving = new AbortController()
  const channel = new BroadcastChannel(`posthouse-live-${account}`)
  let isReader = false
  let lastNote = 0
  const collected = collector(account)
  channel.addEventListener('message', (event: MessageEvent<Note>) => {
    lastNote = Date.now()
    if (event.data.kind === 'hint') collected(event.data.hint)
    else live.set(event.data.isLive ? 'live' : 'polling')
  })
  const state = setInterval(() => {
    if (isReader) channel.postMessage({ kind: 'state', isLive: live.get() === 'live' } satisfies Note)
    else if (Date.now() - lastNote > 3 * STATE_MS) live.set('polling')
  }, STATE_MS)
  const pass = (hint: Hint) => {
    channel.postMessage({ kind: 'hint', hint } satisfies Note)
    collected(hint)
  }
  void navigator.locks
    .request(`posthouse-live-${account}`, { signal: leaving.signal }, async () => {
      isReader = true
      await readOn(leaving.signal, pass)
    })
    .catch(() => undefined)
  return () => {
    leaving.abort()
    clearInterval(state)
    channel.close()
  }
}

async function readOn(signal: AbortSignal, pass: (hint: Hint) => void): Promise<void> {
  let waitMs = 1_000
  while (!signal.aborted) {
    try {
      let rest = ''
      for await (const piece of stream('/v1/live', signal)) {
        live.set('live')
        waitMs = 1_000
        const read = readEvents(rest + piece)
        rest = read.rest
        for (const hint of read.events.map(hintOf)) if (hint !== null) pass(hint)
      }
    } catch (error) {
      if (signal.aborted) return
      // A stream that breaks off is not a refusal: the next try shows whether the service can be reached.
      if (error instanceof Refusal && !isTemporary(error)) waitMs = WAIT_MS_MAX
    }
    live.set('polling')
    await pause(waitMs * (0.5 + Math.random() / 2))
    waitMs = Math.min(waitMs * 2, reachable.get() ? WAIT_MS_MAX : UNREACHABLE_MS)
  }
}

function collector(account: string): (hint: Hint) => void {
  const kinds = new Set<Key[0]>()
  const messages = new Set<string>()
  let timer: ReturnType<typeof setTimeout> | undefined
  return (hint) => {
    if (hint.kind === 'end') return
    if (hint.kind === 'resync') {
      invalidate(account)
      return
    }
    for (const kind of CHANGED[hint.kind]) kinds.add(kind)
    for (const id of hint.messageIds) messages.add(id)
    timer ??= setTimeout(() => {
      timer = undefined
      for (const kind of kinds) invalidate(account, kind)
      for (const id of messages) invalidate(account, 'message', id)
      kinds.clear()
      messages.clear()
    }, COLLECT_MS)
  }
}

/** A value outside React that components can watch. */
import { useSyncExternalStore } from 'react'

export class Store<T> {
  private readonly watchers = new Set<() => void>()

  constructor(private value: T) {}

  readonly get = (): T => this.value

  readonly set = (value: T): void => {
    if (Object.is(value, this.value)) return
    this.value = value
    for (const watcher of this.watchers) watcher()
  }

  readonly watch = (watcher: () => void): (() => void) => {
    this.watchers.add(watcher)
    return () => this.watchers.delete(watcher)
  }
}

export function useStore<T>(store: Store<T>): T {
  return useSyncExternalStore(store.watch, store.get)
}

import { unturned } from '../rules/foreign-text'

/** A text that a stranger wrote: it doesn't change the direction of what is around it. Where it is cut, the title has all of it. */
export function Foreign({ text }: { readonly text: string }) {
  const shown = unturned(text)
  return <bdi title={shown}>{shown}</bdi>
}

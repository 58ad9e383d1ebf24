import { useGo } from '../parts/Link'
import { meaning } from '../rules/search-box'

/** Opens the search result for the typed text. */
export function useSearchGo(): (typed: string) => void {
  const go = useGo()
  return (typed) => {
    const found = meaning(typed)
    if (found?.kind === 'message') go(['messages', found.id])
    if (found?.kind === 'messages') go(['messages'], found.filters as Record<string, string>)
  }
}

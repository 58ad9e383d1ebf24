import { useGo } from '../parts/Link'
import { meaning } from '../rules/search-box'

/** Opens the search result for the typed text; an operator searches the mail of all accounts. */
export function useSearchGo(operates: boolean): (typed: string) => void {
  const go = useGo()
  return (typed) => {
    if (operates) {
      if (typed.trim() !== '') go(['message-search'], { q: typed.trim() })
      return
    }
    const found = meaning(typed)
    if (found?.kind === 'message') go(['messages', found.id])
    if (found?.kind === 'messages') go(['messages'], found.filters as Record<string, string>)
  }
}

/** What a user types on lines of their own. */

export const linesOf = (typed: string): string[] => typed.split('\n').map((line) => line.trim()).filter((line) => line !== '')

/** Lines of "Name: value"; the service says what is wrong with a line that is none. */
export function pairsOf(typed: string): Record<string, string> {
  return Object.fromEntries(linesOf(typed).map((line) => {
    const colon = line.indexOf(':')
    return colon === -1 ? [line, ''] : [line.slice(0, colon).trim(), line.slice(colon + 1).trim()]
  }))
}

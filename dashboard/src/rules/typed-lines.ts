/** Values that a user types one per line. */

export const linesOf = (typed: string): string[] => typed.split('\n').map((line) => line.trim()).filter((line) => line !== '')

/** Lines of "Name: value"; the service explains what is wrong with other lines. */
export function pairsOf(typed: string): Record<string, string> {
  return Object.fromEntries(linesOf(typed).map((line) => {
    const colon = line.indexOf(':')
    return colon === -1 ? [line, ''] : [line.slice(0, colon).trim(), line.slice(colon + 1).trim()]
  }))
}

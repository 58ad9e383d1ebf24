/** An account's own warm-up, as an operator types it: empty for the service's, `exempt`, or recipients day by day. */

export type WarmUp = readonly number[] | 'exempt' | null

export const warmUpText = (own: WarmUp): string => (own === null ? '' : typeof own === 'string' ? own : own.join(', '))

export function warmUpOf(typed: string): number[] | 'default' | 'exempt' {
  const given = typed.trim()
  if (given === '') return 'default'
  return given === 'exempt' ? given : given.split(',').map(Number)
}

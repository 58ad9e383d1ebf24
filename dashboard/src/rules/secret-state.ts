/** The state of an API key or of a credential at a time. */

export type SecretState = 'active' | 'expiring' | 'rotated' | 'revoked' | 'expired'

export interface Secret {
  readonly revoked_at: string | null
  readonly expires_at?: string | null
  readonly replaced_by?: string | null
}

const SOON_MS = 14 * 24 * 60 * 60 * 1000

export function secretState(secret: Secret, now: Date): SecretState {
  if (secret.revoked_at !== null) return 'revoked'
  const left = secret.expires_at == null ? Infinity : new Date(secret.expires_at).getTime() - now.getTime()
  if (left <= 0) return 'expired'
  if (secret.replaced_by != null) return 'rotated'
  return left < SOON_MS ? 'expiring' : 'active'
}

export const works = (state: SecretState): boolean => state !== 'revoked' && state !== 'expired'

/** Networks or domains as a user types them: one per line, or separated by commas. */
export const itemsOf = (typed: string): string[] => typed.split(/[\s,]+/).filter((item) => item !== '')

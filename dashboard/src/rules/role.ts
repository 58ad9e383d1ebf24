/** Who may do what, from the table that is written from the service's own. */
import { NEEDED, OWN, ROLES, type Operation, type Role } from './roles'

export type { Operation, Role }

export const may = (role: Role, operation: Operation): boolean => ROLES.indexOf(role) >= ROLES.indexOf(NEEDED[operation])

/** What the user has in the account. */
export interface Access {
  readonly role: Role
  /** The account requires a second factor, and the user has none. */
  readonly lacksFactor: boolean
}

/** What the user has to get first: null if nothing, else the second factor or the least role. */
export function lack({ role, lacksFactor }: Access, operation: Operation): Role | 'second factor' | null {
  if (lacksFactor && !OWN.includes(operation)) return 'second factor'
  return may(role, operation) ? null : NEEDED[operation]
}

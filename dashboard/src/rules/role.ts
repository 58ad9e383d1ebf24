/** Who may do what, from the table that is written from the service's own. */
import { NEEDED, OWN, ROLES, type Operation, type OperatorOperation, type Role } from './roles'

export type { Operation, Role }

export type AccountOperation = Exclude<Operation, OperatorOperation>

export const isForOperators = (operation: Operation): operation is OperatorOperation => operation.startsWith('operator')

export const may = (role: Role, operation: AccountOperation): boolean => ROLES.indexOf(role) >= ROLES.indexOf(NEEDED[operation])

/** What the user has in the account. */
export interface Access {
  readonly role: Role
  /** The account requires a second factor, and the user has none. */
  readonly lacksFactor: boolean
  /** Of the whole installation, whatever the role. */
  readonly operator: 'no' | 'lacks factor' | 'yes'
}

export type Lack = Role | 'second factor' | 'operator' | 'operator factor'

/** What the user needs first: null if nothing, else the second factor, the lowest role or the operator's flag. */
export function lack({ role, lacksFactor, operator }: Access, operation: Operation): Lack | null {
  if (isForOperators(operation)) return operator === 'yes' ? null : operator === 'no' ? 'operator' : 'operator factor'
  if (lacksFactor && !OWN.includes(operation)) return 'second factor'
  return may(role, operation) ? null : NEEDED[operation]
}

/** Who may do what, from the table that is written from the service's own. */
import { NEEDED, ROLES, type Operation, type Role } from './roles'

export type { Operation, Role }

export const may = (role: Role, operation: Operation): boolean => ROLES.indexOf(role) >= ROLES.indexOf(NEEDED[operation])

export const leastRole = (operation: Operation): Role => NEEDED[operation]

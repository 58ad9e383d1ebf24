/** Roles in words. */
import { words } from './words'

export const roleNames = words({ viewer: 'viewer', member: 'member', admin: 'admin', owner: 'owner' })

export const text = words({
  needs: {
    viewer: 'Every role can do this.',
    member: 'Only members, admins and owners can do this. Ask an owner for the role.',
    admin: 'Only admins and owners can do this. Ask an owner for the role.',
    owner: 'Only owners can do this.',
    operator: 'This is for the operators of the service.',
    'operator factor': 'Operators need a second factor: set yours up in Settings first.',
    'second factor': 'This account requires a second factor: set yours up in Settings first.',
  },
})

/** Roles in words. */
import { words } from './words'

export const roleNames = words({ viewer: 'viewer', member: 'member', admin: 'admin', owner: 'owner' })

export const text = words({
  needs: {
    viewer: 'Every role may do this.',
    member: 'Members, admins and owners may do this: ask an owner for the role.',
    admin: 'Admins and owners may do this: ask an owner for the role.',
    owner: 'Only owners may do this.',
    operator: 'This is for the operators of the service.',
    'operator factor': 'Operators need a second factor: set yours up in Settings first.',
    'second factor': 'This account requires a second factor: set yours up in Settings first.',
  },
})

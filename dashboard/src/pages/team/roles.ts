/** From the least to the most. */
export const ROLES = ['viewer', 'member', 'admin', 'owner'] as const

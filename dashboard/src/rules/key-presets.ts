/** What a new key may do, as most people want it. */
import { text } from '../words/keys'

export type Scope = keyof typeof text.scopeNames
export type Preset = 'send' | 'full' | 'test'

export const SCOPES = Object.keys(text.scopeNames) as readonly Scope[]
/** The scopes that a test key can have. */
export const OF_TESTS: readonly Scope[] = ['send', 'read']

export const SCOPES_OF: Readonly<Record<Preset, readonly Scope[]>> = { send: ['send'], full: SCOPES, test: OF_TESTS }

/** The scopes in their own order, without those that the preset's mode can't have. */
export const chosenScopes = (preset: Preset, chosen: readonly string[]): Scope[] =>
  (preset === 'test' ? OF_TESTS : SCOPES).filter((scope) => chosen.includes(scope))

/** Whether someone chose other scopes than the preset's. */
export const isCustom = (preset: Preset, chosen: readonly string[]): boolean => chosenScopes(preset, chosen).join() !== SCOPES_OF[preset].join()

import { expect, test } from 'vitest'
import { chosenScopes, isCustom, SCOPES, SCOPES_OF } from './key-presets'

test('a preset has its own scopes until others are chosen', () => {
  for (const preset of ['send', 'full', 'test'] as const) expect(isCustom(preset, SCOPES_OF[preset])).toBe(false)
  expect(isCustom('send', ['send', 'read'])).toBe(true)
  expect(isCustom('full', ['send'])).toBe(true)
  expect(isCustom('full', [...SCOPES].reverse())).toBe(false)
})

test('a test key gets no scope that it can’t have', () => {
  expect(chosenScopes('test', SCOPES)).toEqual(['send', 'read'])
  expect(chosenScopes('send', ['templates', 'send'])).toEqual(['send', 'templates'])
})

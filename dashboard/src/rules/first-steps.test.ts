import { expect, it } from 'vitest'
import { cardsOf, isUnused } from './first-steps'

const done = (step: string, at: string) => ({ step, done: true, at })

it('a card is done when all of its steps are, at the time of the last step', () => {
  const cards = cardsOf([
    done('test_mail', '2026-11-15T13:40:01.000Z'),
    done('key_created', '2026-11-15T14:00:00.000Z'),
    { step: 'first_request', done: false, at: null },
    done('webhook_saved', '2026-11-16T08:00:00.000Z'),
    done('webhook_answered', '2026-11-16T09:00:00.000Z'),
  ])
  expect(cards.filter(({ isDone }) => isDone).map(({ name, at }) => [name, at])).toEqual([
    ['testMail', '2026-11-15T13:40:01.000Z'],
    ['webhook', '2026-11-16T09:00:00.000Z'],
  ])
  expect(cards.map(({ name }) => name)).toEqual(['testMail', 'domain', 'key', 'webhook', 'secondFactor', 'invite'])
})

it('an account is unused until the user sends mail or saves a webhook', () => {
  const given = [done('domain_verified', '2026-11-15T13:40:01.000Z'), done('key_created', '2026-11-15T13:40:01.000Z')]
  expect([[], given, [...given, done('first_request', '2026-11-15T13:40:01.000Z')]].map(isUnused)).toEqual([true, true, false])
})

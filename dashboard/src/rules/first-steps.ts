/** The cards of the page "start", from the steps of `GET /v1/progress`. */

export interface FoundStep {
  readonly step: string
  readonly done: boolean
  readonly at: string | null
}

const CARDS = {
  testMail: ['test_mail'],
  domain: ['domain_verified'],
  key: ['key_created', 'first_request'],
  webhook: ['webhook_saved', 'webhook_answered'],
  secondFactor: ['second_factor'],
  invite: ['member_invited'],
} as const

export type CardName = keyof typeof CARDS

export interface Card {
  readonly name: CardName
  readonly isDone: boolean
  /** When its last step was done. */
  readonly at: string | null
}

export const isStepDone = (steps: readonly FoundStep[], name: string): boolean => steps.some(({ step, done }) => step === name && done)

// A domain and a key may be the operator's work.
const BEGINNINGS = ['test_mail', 'first_request', 'webhook_saved']

/** Whether the user has done nothing yet in this account. */
export const isUnused = (steps: readonly FoundStep[]): boolean => !BEGINNINGS.some((name) => isStepDone(steps, name))

export function cardsOf(steps: readonly FoundStep[]): readonly Card[] {
  return (Object.keys(CARDS) as CardName[]).map((name) => {
    const isDone = CARDS[name].every((step) => isStepDone(steps, step))
    const times = steps.flatMap(({ step, at }) => ((CARDS[name] as readonly string[]).includes(step) && at !== null ? [at] : []))
    return { name, isDone, at: isDone ? (times.sort().at(-1) ?? null) : null }
  })
}

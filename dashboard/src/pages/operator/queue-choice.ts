/** Which mail an operator chose, as the address has it. */
export const CHOICES = ['lane', 'destination', 'account', 'message', 'older'] as const
export type Choice = (typeof CHOICES)[number]
export type Chosen = Partial<Record<Choice, string>>

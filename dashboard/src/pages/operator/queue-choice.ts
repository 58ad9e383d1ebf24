/** The operator's choice of recipients, in the address of the page. */
export const CHOICES = ['lane', 'destination', 'account', 'message', 'older'] as const
export type Choice = (typeof CHOICES)[number]
export type Chosen = Partial<Record<Choice, string>>

/** A request that the service refused, or did not answer (status 0). Its message is for people. */
export class Refusal extends Error {
  override readonly name = 'Refusal'

  constructor(
    message: string,
    readonly status: number,
    readonly code: string,
    readonly requestId: string | null,
    readonly retryAfterSeconds: number | null = null,
    readonly secondFactor = false,
  ) {
    super(message)
  }
}

/** Another try may succeed without a change by the user. */
export const isTemporary = (error: unknown): boolean =>
  error instanceof Refusal && (error.status === 0 || error.status === 429 || error.status >= 500)

export const refusalText = (error: unknown): string => (error instanceof Error ? error.message : String(error))

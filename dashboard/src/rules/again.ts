/** Waiting, and repeating requests that failed temporarily. */

export const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms))

/** The first answer; `isWorth` decides after each error, with how many tries were made, whether to ask again. */
export async function again<T>(ask: () => Promise<T>, everyMs: number, isWorth: (error: unknown, tries: number) => boolean): Promise<T> {
  for (let tries = 1; ; tries += 1) {
    try {
      return await ask()
    } catch (error) {
      if (!isWorth(error, tries)) throw error
      await pause(everyMs)
    }
  }
}

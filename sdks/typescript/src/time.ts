/** Clocks and sleeps; a client can be given others, for tests without waiting. */

export interface Clock {
  /** Unix seconds. */
  now(): number;
  /** Seconds that never run backwards. */
  monotonic(): number;
}

/** Ends after so many seconds; or at once, by throwing its reason, when the signal is aborted. */
export type Sleep = (seconds: number, signal?: AbortSignal) => Promise<void>;

// A timer can't be set for longer: it would fire at once.
const TIMER_MILLISECONDS_MAX = 2 ** 31 - 1;

export const systemClock: Clock = {
  now: () => Date.now() / 1000,
  monotonic: () => performance.now() / 1000,
};

/** For a timer: whole ones, rounded up, as many as it can take. */
export function milliseconds(seconds: number): number {
  return Math.min(TIMER_MILLISECONDS_MAX, Math.ceil(seconds * 1000));
}

export async function systemSleep(seconds: number, signal?: AbortSignal): Promise<void> {
  for (let left = seconds; left > 0; left -= TIMER_MILLISECONDS_MAX / 1000) {
    await timer(milliseconds(left), signal);
  }
}

function timer(duration: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) {
      reject(signal.reason);
      return;
    }
    const cancel = (): void => {
      clearTimeout(pending);
      reject(signal?.reason);
    };
    const pending = setTimeout(() => {
      signal?.removeEventListener("abort", cancel);
      resolve();
    }, duration);
    signal?.addEventListener("abort", cancel, { once: true });
  });
}

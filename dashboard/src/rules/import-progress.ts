/** The progress of an import: a line of JSON at a time. */

export interface ImportProgress {
  readonly lines: number
  readonly added: number
  readonly known: number
  readonly invalid: number
  /** Null while the import continues. */
  readonly done: boolean | null
  readonly error: string | null
  /** The first invalid lines, for people. */
  readonly errors: readonly string[]
}

/** The last complete line of the received text, and the rest after it. */
export function readProgress(text: string): { readonly progress: ImportProgress | null; readonly rest: string } {
  const end = text.lastIndexOf('\n')
  if (end < 0) return { progress: null, rest: text }
  const line = text.slice(0, end).trimEnd().split('\n').at(-1) ?? ''
  return { progress: progressOf(line), rest: text.slice(end + 1) }
}

function progressOf(line: string): ImportProgress | null {
  let given: unknown
  try {
    given = JSON.parse(line)
  } catch {
    return null
  }
  if (typeof given !== 'object' || given === null) return null
  const fields = given as Record<string, unknown>
  const count = (name: string) => (typeof fields[name] === 'number' ? fields[name] : 0)
  return {
    lines: count('lines'),
    added: count('added'),
    known: count('known'),
    invalid: count('invalid'),
    done: typeof fields.done === 'boolean' ? fields.done : null,
    error: typeof fields.error === 'string' ? fields.error : null,
    errors: Array.isArray(fields.errors) ? fields.errors.map(errorOf) : [],
  }
}

function errorOf(given: unknown): string {
  const text = typeof given === 'object' && given !== null ? (given as Record<string, unknown>).error : given
  return typeof text === 'string' ? text : JSON.stringify(given)
}

/** Values to try a template with: a JSON object, of which plain names are also fields. */

export type TestData = Readonly<Record<string, unknown>>

/** Null for a text that is no JSON object. */
export function dataOf(json: string): TestData | null {
  if (json.trim() === '') return {}
  try {
    const data: unknown = JSON.parse(json)
    return typeof data === 'object' && data !== null && !Array.isArray(data) ? (data as TestData) : null
  } catch {
    return null
  }
}

/** The names that take a text: not lists and objects, by their values or by their use in blocks. */
export function plainNames(names: readonly string[], template: string, data: TestData): readonly string[] {
  const inBlocks = new Set([...template.matchAll(/\{\{~?[#^]\s*(?:each|with)\s+([^\s}|~]+)/g)].map(([, name]) => name))
  return names.filter((name) => !name.includes('.') && !inBlocks.has(name) && (!Object.hasOwn(data, name) || typeof data[name] !== 'object' || data[name] === null))
}

/** The names are those of a stranger's template: none is a method. */
export const textOf = (data: TestData, name: string): string => (Object.hasOwn(data, name) ? String(data[name] ?? '') : '')

export function withValue(data: TestData, name: string, value: string): string {
  const others = Object.fromEntries(Object.entries(data).filter(([key]) => key !== name || value !== ''))
  return JSON.stringify(value === '' ? others : { ...others, [name]: value }, null, 2)
}

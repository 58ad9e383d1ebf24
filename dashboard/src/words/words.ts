/** Texts pass through here, so that the pseudo-locale (`?pseudo` in the address) can show what is not translated or clips. */

type Text = string | ((...values: never[]) => string) | { readonly [name: string]: Text } | readonly Text[]

const ACCENTS: Readonly<Record<string, string>> = {
  a: 'á', b: 'ƀ', c: 'ç', d: 'ð', e: 'é', g: 'ğ', h: 'ĥ', i: 'í', k: 'ķ', l: 'ł', n: 'ñ', o: 'ö', r: 'ŕ', s: 'š',
  t: 'ţ', u: 'û', w: 'ŵ', y: 'ý', z: 'ž', A: 'Å', C: 'Ç', D: 'Ð', E: 'É', I: 'Î', N: 'Ñ', O: 'Ø', S: 'Š', U: 'Û',
}

/** Accented, in brackets and 40 % longer, as a translation may be. */
export function pseudo(text: string): string {
  const accented = [...text].map((letter) => ACCENTS[letter] ?? letter).join('')
  return `[${accented}${'·'.repeat(Math.ceil(text.length * 0.4))}]`
}

function translated<T extends Text>(text: T): T {
  if (typeof text === 'string') return pseudo(text) as T
  if (typeof text === 'function') return ((...values: never[]) => pseudo(text(...values))) as T
  if (Array.isArray(text)) return text.map((item: Text) => translated(item)) as unknown as T
  return Object.fromEntries(Object.entries(text).map(([name, value]) => [name, translated(value as Text)])) as T
}

export const IS_PSEUDO = typeof location !== 'undefined' && new URLSearchParams(location.search).has('pseudo')

export function words<const T extends Text>(text: T): T {
  return IS_PSEUDO ? translated(text) : text
}

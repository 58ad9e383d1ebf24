/** Links and embedded pictures in the HTML of a message, found as text. The HTML itself is shown only in the frame. */

const LINKS_MAX = 100
const LINK = /<a\b[^>]{0,4096}?\bhref\s*=\s*(?:"([^"]{0,2048})"|'([^']{0,2048})'|([^\s"'>]{1,2048}))/gi
const ENTITIES: Readonly<Record<string, string>> = { amp: '&', quot: '"', apos: "'", lt: '<', gt: '>' }

const decoded = (text: string): string => text.replaceAll(/&(amp|quot|apos|lt|gt);/g, (_, name: string) => ENTITIES[name] ?? '')

/** Each once, in their order. */
export function linksIn(html: string): { readonly links: readonly string[]; readonly isCut: boolean } {
  const found = new Set<string>()
  for (const [, double, single, bare] of html.matchAll(LINK)) {
    const link = decoded(double ?? single ?? bare ?? '').trim()
    if (link === '' || link.startsWith('#')) continue
    if (found.size === LINKS_MAX) return { links: [...found], isCut: true }
    found.add(link)
  }
  return { links: [...found], isCut: false }
}

/** Where a link leads, as a browser reads it: no look-alike host, nothing that turns the text. Null for a link that is shown only as text. */
export function safeAddress(link: string): string | null {
  try {
    const { protocol, href } = new URL(link)
    return protocol === 'https:' ? href : null
  } catch {
    return null
  }
}

export const loadsFromInternet = (html: string): boolean => /(?:\bsrc(?:set)?\s*=\s*["']?|url\(\s*["']?|\bbackground\s*=\s*["']?)\s*(?:https?:)?\/\//i.test(html)

/** Content ids that the HTML shows as pictures, without the brackets. */
export function contentIdsIn(html: string): readonly string[] {
  return [...new Set([...html.matchAll(/\bcid:([^"'\s)>]{1,512})/gi)].map(([, id]) => id ?? ''))]
}

/** `cid:` becomes the `data:` address of the attachment; unknown ones stay. */
export function withPictures(html: string, pictures: Readonly<Record<string, string>>): string {
  return html.replaceAll(/\bcid:([^"'\s)>]{1,512})/gi, (whole, id: string) => (Object.hasOwn(pictures, id) ? (pictures[id] ?? whole) : whole))
}

export const bareContentId = (id: string): string => id.replace(/^<|>$/g, '')

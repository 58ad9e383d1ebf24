/** DNS records as a zone file, which most DNS panels can import. */

export interface TextRecord {
  /** The full name, without the last dot. */
  readonly name: string
  readonly value: string
}

const TTL_SECONDS = 3600
// A character string of a TXT record holds at most this many bytes; longer values are several of them.
const STRING_BYTES_MAX = 255

export function zoneFile(records: readonly TextRecord[]): string {
  return records.map(({ name, value }) => `${name}. ${String(TTL_SECONDS)} IN TXT ${strings(value)}\n`).join('')
}

function strings(value: string): string {
  const parts: string[] = []
  let part = ''
  let bytes = 0
  for (const character of value) {
    const size = new TextEncoder().encode(character).length
    if (bytes + size > STRING_BYTES_MAX) {
      parts.push(part)
      part = ''
      bytes = 0
    }
    part += character
    bytes += size
  }
  return [...parts, part].map((text) => `"${escaped(text)}"`).join(' ')
}

/** Quotes, backslashes and whatever is not printable ASCII: a value must not start another record. */
function escaped(text: string): string {
  return [...new TextEncoder().encode(text)]
    .map((byte) => {
      const character = String.fromCharCode(byte)
      if (character === '"' || character === '\\') return `\\${character}`
      return byte < 0x20 || byte > 0x7e ? `\\${String(byte).padStart(3, '0')}` : character
    })
    .join('')
}

/** The name for panels that append the domain; `@` for the domain itself. */
export function nameWithin(name: string, domain: string): string {
  if (name === domain) return '@'
  return name.endsWith(`.${domain}`) ? name.slice(0, -domain.length - 1) : name
}

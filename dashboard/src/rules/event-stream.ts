/** Server-sent events, read from pieces of text. */

export interface StreamEvent {
  readonly name: string
  readonly data: string
}

/** The complete events in the text read so far, and the rest. */
export function readEvents(text: string): { readonly events: readonly StreamEvent[]; readonly rest: string } {
  const blocks = text.split('\n\n')
  const rest = blocks.pop() ?? ''
  return { events: blocks.map(readEvent).filter((event) => event !== null), rest }
}

function readEvent(block: string): StreamEvent | null {
  let name = 'message'
  const data: string[] = []
  for (const line of block.split('\n')) {
    const [field, value = ''] = [line.split(':', 1)[0], line.slice(line.indexOf(':') + 1).replace(/^ /, '')]
    if (field === 'event') name = value
    if (field === 'data') data.push(value)
  }
  return data.length === 0 && name === 'message' ? null : { name, data: data.join('\n') }
}

/** A hint of the stream: what to read again. */
export type Hint =
  | { readonly kind: 'accepted'; readonly messageIds: readonly string[] }
  | { readonly kind: 'final'; readonly messageIds: readonly string[] }
  | { readonly kind: 'resync' }
  | { readonly kind: 'end' }

/** Null for an event that the dashboard doesn't use. */
export function hintOf(event: StreamEvent): Hint | null {
  const data = parsed(event.data)
  switch (event.name) {
    case 'accepted':
      return { kind: 'accepted', messageIds: texts(data.message_ids) }
    case 'final':
      return { kind: 'final', messageIds: texts(rows(data.recipients).map((row) => row.message_id)) }
    case 'ready':
    case 'resync':
      return { kind: 'resync' }
    case 'end':
      return { kind: 'end' }
    default:
      return null
  }
}

function parsed(text: string): Record<string, unknown> {
  try {
    const value = JSON.parse(text) as unknown
    return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : {}
  } catch {
    return {}
  }
}

const rows = (value: unknown): Record<string, unknown>[] =>
  Array.isArray(value) ? value.filter((item): item is Record<string, unknown> => typeof item === 'object' && item !== null) : []

const texts = (value: unknown): string[] =>
  Array.isArray(value) ? [...new Set(value.filter((item): item is string => typeof item === 'string'))] : []

/** The Markdown of docs/runbooks: headings, paragraphs and lists, with code, links and strong words in them. Nothing becomes HTML. */

export interface Part {
  readonly kind: 'text' | 'code' | 'link' | 'strong'
  readonly text: string
  /** The target of a link. */
  readonly to: string
}

export interface Block {
  /** Each paragraph is a block, and so are consecutive items of a list. */
  readonly kind: 'title' | 'heading' | 'text' | 'item'
  readonly parts: readonly Part[]
}

const INLINE = /`([^`]+)`|\*\*([^*]+)\*\*|\[([^\]]+)\]\(([^)]+)\)/g
const KINDS: readonly (readonly [string, Block['kind']])[] = [['# ', 'title'], ['## ', 'heading'], ['- ', 'item']]

export function runbookBlocks(markdown: string): Block[] {
  const texts: string[] = []
  let isNew = true
  for (const line of markdown.split('\n')) {
    const isBegin = KINDS.some(([mark]) => line.startsWith(mark))
    if (line.trim() !== '') {
      if (isNew || isBegin) texts.push(line)
      else texts.push(`${texts.pop() ?? ''} ${line.trim()}`)
    }
    isNew = line.trim() === ''
  }
  return texts.map((text) => {
    const [mark, kind] = KINDS.find(([begin]) => text.startsWith(begin)) ?? ['', 'text' as const]
    return { kind, parts: partsOf(text.slice(mark.length)) }
  })
}

function partsOf(text: string): Part[] {
  const parts: Part[] = []
  let end = 0
  for (const found of text.matchAll(INLINE)) {
    if (found.index > end) parts.push({ kind: 'text', text: text.slice(end, found.index), to: '' })
    const [whole, code, strong, label, to] = found
    if (code !== undefined) parts.push({ kind: 'code', text: code, to: '' })
    else if (strong !== undefined) parts.push({ kind: 'strong', text: strong, to: '' })
    else parts.push({ kind: 'link', text: label ?? '', to: to ?? '' })
    end = found.index + whole.length
  }
  if (end < text.length) parts.push({ kind: 'text', text: text.slice(end), to: '' })
  return parts
}

/** Code of a documentation page: each `### title` below a `## section`, with its first code block. */

export interface DocSnippet {
  readonly title: string
  readonly code: string
}

export function docSnippets(markdown: string, section: string): DocSnippet[] {
  const [, after = ''] = markdown.split(`\n## ${section}\n`)
  const [body = ''] = after.split('\n## ')
  return body.split('\n### ').slice(1).flatMap((part) => {
    const title = part.slice(0, part.indexOf('\n'))
    const code = /\n```\w*\n([\s\S]*?)\n```/.exec(part)?.[1]
    return code === undefined ? [] : [{ title, code }]
  })
}

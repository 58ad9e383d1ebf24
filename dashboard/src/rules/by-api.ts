/** A request as curl and as Python, without its token. */

export interface MadeRequest {
  readonly method: string
  /** Path and search. */
  readonly path: string
  /** Null without one; `hidden` if it holds a secret. */
  readonly body: { readonly kind: 'json'; readonly text: string } | { readonly kind: 'hidden' } | null
  readonly status: number
  readonly requestId: string | null
}

// The headers of an endpoint may contain credentials.
const SECRET_PATHS = /^\/v1\/(auth\/|invitations\/accept|endpoints$|endpoints\/[^/]+$)/

export const hidesBody = (path: string): boolean => SECRET_PATHS.test(path)

const quoted = (text: string): string => `'${text.replaceAll("'", `'\\''`)}'`

export function asCurl(request: MadeRequest, origin: string): string {
  const lines = [`curl ${request.method === 'GET' ? '' : `-X ${request.method} `}${quoted(origin + request.path)}`]
  lines.push(`-H "Authorization: Bearer $POSTHOUSE_TOKEN"`)
  if (request.body?.kind === 'json') lines.push(`-H 'Content-Type: application/json'`, `-d ${quoted(request.body.text)}`)
  if (request.body?.kind === 'hidden') lines.push(`-H 'Content-Type: application/json'`, `-d @body.json`)
  return lines.join(' \\\n  ')
}

export function asPython(request: MadeRequest, origin: string): string {
  const json = request.body === null ? '' : request.body.kind === 'json' ? `\n    json=${pythonValue(parsed(request.body.text))},` : '\n    json=body,'
  return [
    'import os',
    '',
    'import httpx',
    '',
    'answer = httpx.request(',
    `    ${JSON.stringify(request.method)},`,
    `    ${JSON.stringify(origin + request.path)},`,
    `    headers={"Authorization": f"Bearer {os.environ['POSTHOUSE_TOKEN']}"},${json}`,
    ')',
    'answer.raise_for_status()',
  ].join('\n')
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text) as unknown
  } catch {
    return text
  }
}

function pythonValue(value: unknown): string {
  if (value === null || value === undefined) return 'None'
  if (value === true) return 'True'
  if (value === false) return 'False'
  if (Array.isArray(value)) return `[${value.map(pythonValue).join(', ')}]`
  if (typeof value === 'object') {
    return `{${Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${pythonValue(item)}`).join(', ')}}`
  }
  return JSON.stringify(value)
}

import { expect, it } from 'vitest'
import { asCurl, asPython, hidesBody, type MadeRequest } from './by-api'

const REQUEST: MadeRequest = {
  method: 'POST', path: '/v1/domains', body: { kind: 'json', text: `{"name":"it's.example","wildcard":true,"note":null}` }, status: 201, requestId: 'rq_1',
}

it('curl quotes for the shell', () => {
  expect(asCurl(REQUEST, 'https://mail.example')).toBe(
    `curl -X POST 'https://mail.example/v1/domains' \\\n  -H "Authorization: Bearer $POSTHOUSE_TOKEN" \\\n  -H 'Content-Type: application/json' \\\n  -d '{"name":"it'\\''s.example","wildcard":true,"note":null}'`,
  )
})

it('Python has its own literals', () => {
  expect(asPython(REQUEST, 'https://mail.example')).toContain(`json={"name": "it's.example", "wildcard": True, "note": None},`)
})

it('bodies with secrets are not shown', () => {
  expect(['/v1/auth/login', '/v1/auth/totp', '/v1/invitations/accept', '/v1/endpoints', '/v1/endpoints/ep_1'].every(hidesBody)).toBe(true)
  expect(['/v1/domains', '/v1/endpoints/ep_1/replay'].some(hidesBody)).toBe(false)
  expect(asCurl({ ...REQUEST, body: { kind: 'hidden' } }, 'https://mail.example')).toContain('-d @body.json')
})

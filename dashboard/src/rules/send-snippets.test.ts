import { expect, test } from 'vitest'
import { LANGUAGES, sendSnippet } from './send-snippets'

const example = { origin: 'https://mail.example', from: 'hello@shop.example', to: 'delivered@simulator.invalid' }

test.each(LANGUAGES)('%s names the address, the sender and the key of the environment', (language) => {
  const code = sendSnippet(language, example)
  for (const part of ['https://mail.example/emails', example.from, example.to, 'POSTHOUSE_API_KEY', 'Idempotency-Key']) expect(code).toContain(part)
})

test('a quote in an address does not end the string', () => {
  const hostile = { ...example, from: `o'neil"@shop.example` }
  expect(sendSnippet('curl', hostile)).toContain(`"o'\\''neil\\"@shop.example"`)
  expect(sendSnippet('php', hostile)).toContain(`'o\\'neil"@shop.example'`)
  expect(sendSnippet('ruby', { ...example, from: '#{exit}@shop.example' })).toContain(`'#{exit}@shop.example'`)
})

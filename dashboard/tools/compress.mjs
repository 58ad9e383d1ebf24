/** Writes a .br and a .gz next to every built file that compresses, so that the service never has to compress. */
import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { brotliCompressSync, constants, gzipSync } from 'node:zlib'

const BUILT = new URL('../../src/posthouse/dashboard/assets/', import.meta.url).pathname
for (const name of readdirSync(BUILT)) {
  if (!/\.(js|css|svg)$/.test(name)) continue
  const file = join(BUILT, name)
  const content = readFileSync(file)
  const quality = { params: { [constants.BROTLI_PARAM_QUALITY]: 11, [constants.BROTLI_PARAM_SIZE_HINT]: content.length } }
  writeFileSync(`${file}.br`, brotliCompressSync(content, quality))
  writeFileSync(`${file}.gz`, gzipSync(content, { level: 9 }))
}

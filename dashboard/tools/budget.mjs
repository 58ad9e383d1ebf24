/** Fails if the files that the browser loads exceed their budget; sizes are those of the .br files. */
import { readdirSync, readFileSync, statSync } from 'node:fs'

const BUILT = new URL('../../src/posthouse/dashboard/', import.meta.url).pathname
const KB = 1000
const BUDGET = { first: 200 * KB, page: 60 * KB, charts: 110 * KB, editor: 150 * KB, all: 750 * KB }

const manifest = JSON.parse(readFileSync(`${BUILT}.vite/manifest.json`, 'utf8'))
const size = (file) => statSync(`${BUILT}${file}.br`).size

/** The files that loading a chunk brings along, without those that are loaded later. */
function files(key, found = new Set()) {
  const chunk = manifest[key]
  if (found.has(chunk.file)) return found
  found.add(chunk.file)
  for (const css of chunk.css ?? []) found.add(css)
  for (const other of chunk.imports ?? []) files(other, found)
  return found
}

const sum = (names) => [...names].reduce((bytes, name) => bytes + size(name), 0)
const first = files('index.html')
const failures = []
function compare(name, bytes, limit) {
  console.log(`${(bytes / KB).toFixed(1).padStart(7)} KB of ${limit / KB}  ${name}`)
  if (bytes > limit) failures.push(name)
}

compare('first load', sum(first), BUDGET.first)
for (const key of Object.keys(manifest).filter((key) => manifest[key].isDynamicEntry)) {
  const more = new Set([...files(key)].filter((name) => !first.has(name)))
  const limit = /Chart/.test(key) ? BUDGET.charts : /Editor/.test(key) ? BUDGET.editor : BUDGET.page
  compare(key, sum(more), limit)
}
compare('all', sum(readdirSync(`${BUILT}assets`).filter((name) => /\.(js|css|svg)$/.test(name)).map((name) => `assets/${name}`)), BUDGET.all)
if (failures.length > 0) {
  console.error(`Over the budget: ${failures.join(', ')}. Load parts of it lazily, or take them out.`)
  process.exit(1)
}

/** The layers: words ← rules ← api, parts ← pages ← shell ← main.tsx. */
const never = (name, from, to) => ({ name, severity: 'error', from: { path: from }, to: { path: to } })

module.exports = {
  forbidden: [
    { name: 'no-circle', severity: 'error', from: {}, to: { circular: true } },
    never('words-import-nothing', '^src/words/(?!.*\\.test\\.ts$)', '^(?!src/words)'),
    never('rules-are-pure', '^src/rules/(?!.*\\.test\\.ts$)', '^(?!src/(rules|words))'),
    never('api-knows-no-parts', '^src/api', '^src/(parts|pages|shell)'),
    never('parts-know-no-api', '^src/parts', '^src/(api|pages|shell)'),
    never('pages-know-no-shell', '^src/pages', '^src/(shell|main)'),
    {
      name: 'no-page-knows-another',
      severity: 'error',
      from: { path: '^src/pages/([^/]+)/' },
      to: { path: '^src/pages/', pathNot: '^src/pages/$1/' },
    },
    never('fetch-in-client-only', '^src/(?!api/client)', 'node_modules/openapi-fetch'),
    { name: 'locked', severity: 'error', from: {}, to: { dependencyTypes: ['npm-no-pkg', 'npm-unknown', 'unknown', 'undetermined'] } },
  ],
  options: {
    doNotFollow: { path: 'node_modules' },
    tsConfig: { fileName: 'tsconfig.json' },
    tsPreCompilationDeps: true,
    enhancedResolveOptions: { exportsFields: ['exports'], conditionNames: ['import', 'types', 'default'] },
  },
}

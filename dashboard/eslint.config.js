import js from '@eslint/js'
import hooks from 'eslint-plugin-react-hooks'
import tseslint from 'typescript-eslint'

const WORDS = 'Texts are in src/words: import them.'
const said = 'label|title|placeholder|description|aria-label|alt|nothingFoundMessage|caption'

const syntax = [
  { selector: 'JSXText[value=/[A-Za-z]/]', message: WORDS },
  { selector: `JSXAttribute[name.name=/^(${said})$/] > Literal[value=/[A-Za-z]/]`, message: WORDS },
  { selector: `JSXAttribute[name.name=/^(${said})$/] > JSXExpressionContainer > TemplateLiteral`, message: WORDS },
  { selector: 'JSXElement > JSXExpressionContainer > Literal[value=/[A-Za-z]/]', message: WORDS },
  { selector: 'JSXElement > JSXExpressionContainer > ConditionalExpression > Literal[value=/[A-Za-z]/]', message: WORDS },
  {
    selector: 'JSXAttribute[name.name=/^(dangerouslySetInnerHTML|srcDoc)$/]',
    message: 'Foreign HTML is shown only in parts/HtmlFrame.',
  },
  {
    selector: 'MemberExpression[property.name=/^(innerHTML|outerHTML|insertAdjacentHTML|srcdoc|createContextualFragment|write|writeln)$/]',
    message: 'Only React makes markup.',
  },
  { selector: 'NewExpression[callee.name=/^(Function|DOMParser|EventSource|WebSocket|XMLHttpRequest)$/]', message: 'Not in the dashboard.' },
  {
    selector: 'MemberExpression[property.name=/^(localStorage|sessionStorage|indexedDB|cookie)$/]',
    message: 'Nothing is stored in the browser but the colour scheme, by Mantine.',
  },
]

export default tseslint.config(
  { ignores: ['node_modules', 'src/api/schema.d.ts', 'src/rules/roles.ts'] },
  js.configs.recommended,
  ...tseslint.configs.strict,
  {
    files: ['src/**/*.{ts,tsx}'],
    plugins: { 'react-hooks': hooks },
    rules: {
      ...hooks.configs.recommended.rules,
      // The compiler's rules: the compiler is not used, and TanStack Virtual can't satisfy this rule.
      'react-hooks/incompatible-library': 'off',
      'no-restricted-syntax': ['error', ...syntax],
      'no-restricted-globals': [
        'error',
        { name: 'fetch', message: 'Only api/client.ts makes requests.' },
        { name: 'localStorage', message: 'Nothing is stored in the browser but the colour scheme.' },
        { name: 'sessionStorage', message: 'Nothing is stored in the browser but the colour scheme.' },
        { name: 'indexedDB', message: 'Nothing is stored in the browser but the colour scheme.' },
        { name: 'eval', message: 'Not in the dashboard.' },
        { name: 'alert', message: 'Use a part.' },
        { name: 'confirm', message: 'Use parts/Confirm.' },
      ],
      'no-console': 'error',
      eqeqeq: ['error', 'always', { null: 'ignore' }],
      'max-lines': ['error', 400],
      '@typescript-eslint/no-unused-vars': ['error', { argsIgnorePattern: '^_' }],
    },
  },
  { files: ['src/api/client.ts'], rules: { 'no-restricted-globals': 'off' } },
  { files: ['**/*.{js,cjs,mjs}'], languageOptions: { globals: { module: 'writable', URL: 'readonly', console: 'readonly', process: 'readonly' } } },
)

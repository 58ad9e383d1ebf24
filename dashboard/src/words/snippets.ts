/** Texts of the examples that send a first mail. */
import { words } from './words'

export const text = words({
  languages: { curl: 'curl', python: 'Python', node: 'Node', php: 'PHP', ruby: 'Ruby', go: 'Go' },
  host: 'SMTP server',
  starttlsPort: 'Port with STARTTLS',
  tlsPort: 'Port with TLS from the start',
  username: 'Username',
  password: 'The password was shown when the credential was made or rotated.',
  usernameUnknown: 'Username and password are those of an SMTP credential. Admins and owners see and make them.',
  noSmtp: 'This service takes no mail over SMTP: use the API.',
} as const)

/** Texts of the examples that send a first email. */
import { words } from './words'

export const text = words({
  languages: { curl: 'curl', python: 'Python', node: 'Node', php: 'PHP', ruby: 'Ruby', go: 'Go' },
  host: 'SMTP server',
  starttlsPort: 'Port with STARTTLS',
  tlsPort: 'Port with implicit TLS',
  username: 'Username',
  password: 'The password was shown when the credential was created or rotated.',
  usernameUnknown: 'Username and password are those of an SMTP credential. Admins and owners see and create them.',
  noSmtp: 'This service does not accept mail over SMTP: use the API.',
} as const)

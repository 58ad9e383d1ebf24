/** A first email in six languages, and the SMTP settings. */
import { Stack, Tabs, Text } from '@mantine/core'
import { LANGUAGES, sendSnippet, type Example } from '../rules/send-snippets'
import { text } from '../words/snippets'
import { CodeBlock, CopyField } from './Copy'

export function SendSnippets(example: Example) {
  return (
    <Tabs defaultValue="curl" keepMounted={false}>
      <Tabs.List>
        {LANGUAGES.map((language) => <Tabs.Tab key={language} value={language}>{text.languages[language]}</Tabs.Tab>)}
      </Tabs.List>
      {LANGUAGES.map((language) => (
        <Tabs.Panel key={language} value={language} pt="xs"><CodeBlock code={sendSnippet(language, example)} name={text.languages[language]} /></Tabs.Panel>
      ))}
    </Tabs>
  )
}

export interface Submission {
  readonly host: string
  readonly starttls_port: number | null
  readonly tls_port: number | null
}

export function SmtpSettings({ submission, username }: {
  readonly submission: Submission | null
  /** Null if the user may not see it. */
  readonly username: string | null
}) {
  if (submission === null) return <Text size="sm">{text.noSmtp}</Text>
  return (
    <Stack gap="xs">
      <CopyField name={text.host} value={submission.host} label />
      {submission.starttls_port !== null && <CopyField name={text.starttlsPort} value={String(submission.starttls_port)} label />}
      {submission.tls_port !== null && <CopyField name={text.tlsPort} value={String(submission.tls_port)} label />}
      {username !== null && <CopyField name={text.username} value={username} label />}
      <Text size="sm" c="dimmed">{username === null ? text.usernameUnknown : text.password}</Text>
    </Stack>
  )
}

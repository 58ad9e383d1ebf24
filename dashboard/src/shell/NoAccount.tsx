/** Pages for an unknown account, an unknown page and a fault. */
import { Anchor, Button, Center, Code, Stack, Text, Title } from '@mantine/core'
import type { Me } from '../api/session'
import { RouterLink } from '../parts/Link'
import { refusalText } from '../rules/refusal'
import { text } from '../words/shell'

export function NoAccount({ me }: { readonly me: Me }) {
  return (
    <Center component="main" mih="100vh" p="md">
      <Stack>
        <Title order={1} size="h3">{text.noAccount}</Title>
        <Text>{text.noAccountWhy}</Text>
        <Stack component="ul" gap="xs">
          {me.accounts.map((account) => (
            <li key={account.id}><Anchor renderRoot={(props) => <RouterLink {...props} to={`/${account.id}/overview`} />}>{account.name}</Anchor></li>
          ))}
        </Stack>
      </Stack>
    </Center>
  )
}

export function NotFound() {
  return (
    <Stack align="flex-start">
      <Title order={1} size="h3">{text.notFound}</Title>
      <Text>{text.notFoundWhy}</Text>
      <Anchor renderRoot={(props) => <RouterLink {...props} to="/" />}>{text.toOverview}</Anchor>
    </Stack>
  )
}

export function Broken({ error }: { readonly error: unknown }) {
  return (
    <Stack align="flex-start" role="alert">
      <Title order={1} size="h3">{text.broken}</Title>
      <Text>{text.brokenWhy}</Text>
      <Code block>{refusalText(error)}</Code>
      <Button onClick={() => location.reload()}>{text.reload}</Button>
    </Stack>
  )
}

/** Values to be copied, and secrets that are shown once. */
import { ActionIcon, Alert, Button, Code, CopyButton as Copying, Group, Stack, Text, Tooltip } from '@mantine/core'
import { IconCheck, IconCopy } from '@tabler/icons-react'
import { text } from '../words/parts'
import classes from './parts.module.css'

export function CopyButton({ value, name }: { readonly value: string; readonly name: string }) {
  return (
    <Copying value={value} timeout={2000}>
      {({ copied, copy }) => (
        <Tooltip label={copied ? text.copied : text.copyNamed(name)}>
          <ActionIcon variant="subtle" color="gray" onClick={copy} aria-label={copied ? text.copied : text.copyNamed(name)} className={classes.unprinted}>
            {copied ? <IconCheck size={16} /> : <IconCopy size={16} />}
          </ActionIcon>
        </Tooltip>
      )}
    </Copying>
  )
}

/** A value in monospace with its copy button; `name` says what it is, for screen readers and the label. */
export function CopyField({ value, name, label }: { readonly value: string; readonly name: string; readonly label?: boolean }) {
  return (
    <Stack gap={2} miw={0}>
      {label === true && <Text size="xs">{name}</Text>}
      <Group gap={4} wrap="nowrap" align="flex-start">
        <Code className={classes.value}>{value}</Code>
        <CopyButton value={value} name={name} />
      </Group>
    </Stack>
  )
}

/** Several lines of code with a copy button. */
export function CodeBlock({ code, name }: { readonly code: string; readonly name: string }) {
  return (
    <Group gap={4} wrap="nowrap" align="flex-start">
      <Code block className={classes.code} flex={1} miw={0} tabIndex={0} aria-label={name} role="region">{code}</Code>
      <CopyButton value={code} name={name} />
    </Group>
  )
}

/** A secret that the service shows once; `onStored` is called when the user confirms that they stored it. */
export function SecretOnce({ secrets, onStored }: {
  readonly secrets: readonly { readonly name: string; readonly value: string }[]
  readonly onStored: () => void
}) {
  return (
    <Alert color="yellow" title={text.secretOnce} role="alert">
      <Stack gap="sm" align="flex-start">
        {secrets.map(({ name, value }) => <CopyField key={name} name={name} value={value} label />)}
        <Button size="xs" onClick={onStored}>{text.secretStored}</Button>
      </Stack>
    </Alert>
  )
}

/** The banner while an operator impersonates a viewer of a customer's account. */
import { Alert, Button, Group, Text } from '@mantine/core'
import { useNavigate } from '@tanstack/react-router'
import { useState } from 'react'
import { endImpersonation } from '../api/session'
import { moment } from '../words/format'
import { impersonation as text } from '../words/operator'

export default function Impersonation({ until }: { readonly until: string }) {
  const navigate = useNavigate()
  const [isPending, setPending] = useState(false)
  const end = async () => {
    setPending(true)
    await navigate({ to: `/${await endImpersonation()}/accounts` })
  }
  return (
    <Alert color="grape" data-banner="impersonation">
      <Group justify="space-between">
        <Text size="sm" flex="1 1 280px">{text.banner(moment(until))}</Text>
        <Button size="xs" variant="default" loading={isPending} onClick={() => void end()}>{text.end}</Button>
      </Group>
    </Alert>
  )
}

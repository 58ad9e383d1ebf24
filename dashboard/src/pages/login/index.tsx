/** Sign-in, also by a one-time link (`#link=…`). */
import { Anchor } from '@mantine/core'
import { useNavigate, useSearch } from '@tanstack/react-router'
import { useEffect } from 'react'
import { session } from '../../api/session'
import { useStore } from '../../api/store'
import { RouterLink } from '../../parts/Link'
import { returnPath, tokenOf } from '../../rules/address'
import { text } from '../../words/login'
import { Card } from './Card'
import { LinkSignIn } from './LinkSignIn'
import { SignInForm } from './SignInForm'

export default function LoginPage() {
  const present = useStore(session)
  const navigate = useNavigate()
  const { to }: { to?: string } = useSearch({ strict: false })
  const link = tokenOf(location.hash)
  const account = present.state === 'signed in' ? present.me.account_id : null
  const isLink = link?.kind === 'link'
  useEffect(() => {
    if (account !== null && !isLink) void navigate({ href: returnPath(to) ?? `/${account}`, replace: true })
  }, [account, isLink, navigate, to])
  if (link?.kind === 'link') return <LinkSignIn token={link.token} />
  return (
    <Card title={text.title}>
      <SignInForm email={null} />
      <Anchor size="sm" renderRoot={(props) => <RouterLink {...props} to="/forgotten" />}>{text.forgotten}</Anchor>
    </Card>
  )
}

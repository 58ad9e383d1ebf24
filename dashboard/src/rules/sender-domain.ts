/** The domain that an example sends from: one of the account's domains, else the operator's shared domain. */

export interface Sendable {
  readonly name: string
  readonly verified: boolean
  readonly shared: boolean
}

export function senderDomain(domains: readonly Sendable[] | undefined): string | undefined {
  const verified = domains?.filter((domain) => domain.verified) ?? []
  return (verified.find((domain) => !domain.shared) ?? verified[0])?.name
}

/** The operator's domain, while the account has no verified domain. */
export function sandboxOf(domains: readonly Sendable[] | undefined): string | undefined {
  const name = senderDomain(domains)
  return domains?.some((domain) => domain.name === name && domain.shared) === true ? name : undefined
}

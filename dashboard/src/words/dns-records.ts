/** Texts of a domain's DNS records. */
import { words } from './words'

export const text = words({
  purposes: {
    ownership: 'Proof of ownership',
    dkim_rsa: 'Signature (DKIM, RSA)',
    dkim_ed25519: 'Signature (DKIM, Ed25519)',
    return_path: 'Return path (SPF)',
    dmarc: 'Policy (DMARC)',
  },
  why: {
    ownership: 'Shows that the domain is yours.',
    dkim_rsa: 'Lets receivers check that your mail is genuine.',
    dkim_ed25519: 'A second, shorter signature for receivers that support it.',
    return_path: 'Bounces are returned to this domain of the service.',
    dmarc: 'Tells receivers what to do with mail that falsely claims to be yours.',
  },
  record: (purpose: string, name: string) => `${purpose}: ${name}`,
  required: 'required',
  recommended: 'recommended',
  notYours: 'managed by the service',
  states: { pending: 'new key', previous: 'previous key' },
  results: { found: 'found', missing: 'not found', unknown: 'DNS did not answer', unchecked: 'not checked yet' },
  name: (type: string) => `Name of the ${type} record`,
  shortName: 'Name, if your DNS panel appends the domain',
  value: 'Value',
  found: 'DNS contains instead',
  foundValue: (place: number) => `value ${String(place)} in DNS`,
} as const)

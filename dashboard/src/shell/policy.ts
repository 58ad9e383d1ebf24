/** Imported first. The only Trusted Types policy: it refuses markup from texts, so an injected text can't become HTML. */
import { setNonce } from 'get-nonce'

interface TrustedTypes {
  createPolicy: (name: string, rules: { createHTML: (text: string) => string | null }) => unknown
}

;(window as { trustedTypes?: TrustedTypes }).trustedTypes?.createPolicy('default', {
  createHTML: (text) => (text.includes('<') ? null : text),
})

/** Styles that components add carry the page's nonce. */
export const nonce = document.querySelector<HTMLMetaElement>('meta[property=csp-nonce]')?.nonce ?? ''
setNonce(nonce)

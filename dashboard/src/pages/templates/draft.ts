import type { components } from '../../api/schema'

type Engine = NonNullable<Version['engine']>

export interface Draft {
  readonly subject: string
  readonly text: string
  readonly html: string
  readonly engine: Engine
}

type Version = components['schemas']['TemplateVersion']

export const draftOf = (version: Version | undefined): Draft => ({ subject: version?.subject ?? '', text: version?.text ?? '', html: version?.html ?? '', engine: version?.engine ?? 'plain' })

/** Empty parts are absent for the service. */
export const bodyOf = ({ subject, text, html, engine }: Draft) => ({ subject: subject || null, text: text || null, html: html || null, engine })

export const isSame = (a: Draft, b: Draft): boolean => a.subject === b.subject && a.text === b.text && a.html === b.html && a.engine === b.engine

/** As a single text, for a comparison. */
export const written = ({ subject, text, html }: Draft): string => [subject, '', html, '', text].join('\n')

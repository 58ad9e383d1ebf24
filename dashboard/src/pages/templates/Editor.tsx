/** CodeMirror, in a separate chunk. */
import { defaultKeymap, history, historyKeymap } from '@codemirror/commands'
import { html } from '@codemirror/lang-html'
import { HighlightStyle, syntaxHighlighting } from '@codemirror/language'
import { EditorState } from '@codemirror/state'
import { drawSelection, EditorView, keymap, lineNumbers } from '@codemirror/view'
import { tags } from '@lezer/highlight'
import { getNonce } from 'get-nonce'
import { useEffect, useRef } from 'react'
// A separate file: that of the page would pull in the page's chunk.
import classes from './editor.module.css'

const COLORS = HighlightStyle.define([
  { tag: [tags.tagName, tags.angleBracket], color: 'var(--mantine-color-anchor)' },
  { tag: tags.attributeName, color: 'light-dark(#862e9c, #e599f7)' },
  { tag: [tags.string, tags.attributeValue], color: 'light-dark(#087f5b, #63e6be)' },
  { tag: tags.comment, color: 'var(--mantine-color-dimmed)' },
])

export interface EditorProps {
  readonly initial: string
  readonly label: string
  readonly isHtml: boolean
  readonly isReadOnly: boolean
  readonly onChange: (value: string) => void
}

/** Uncontrolled: give it another `key` for another text. */
export default function Editor({ initial, label, isHtml, isReadOnly, onChange }: EditorProps) {
  const box = useRef<HTMLDivElement>(null)
  const change = useRef(onChange)
  useEffect(() => {
    change.current = onChange
  }, [onChange])
  useEffect(() => {
    if (box.current === null) return
    const view = new EditorView({
      parent: box.current,
      doc: initial,
      extensions: [
        history(), lineNumbers(), drawSelection(), EditorView.lineWrapping,
        // The browser handles Tab: keyboard users must be able to leave the editor.
        keymap.of([...defaultKeymap, ...historyKeymap]),
        ...(isHtml ? [html({ autoCloseTags: false })] : []),
        syntaxHighlighting(COLORS),
        EditorState.readOnly.of(isReadOnly),
        EditorView.cspNonce.of(getNonce() ?? ''),
        EditorView.contentAttributes.of({ 'aria-label': label }),
        EditorView.updateListener.of((update) => {
          if (update.docChanged) change.current(update.state.doc.toString())
        }),
      ],
    })
    return () => view.destroy()
    // eslint-disable-next-line react-hooks/exhaustive-deps -- the text belongs to the editor from then on
  }, [isHtml, isReadOnly, label])
  return <div ref={box} className={classes.editor} />
}

/** One box for ids, addresses, tags and words of subjects; it leads to Messages. */
import { Kbd, TextInput } from '@mantine/core'
import { useHotkeys } from '@mantine/hooks'
import { IconSearch } from '@tabler/icons-react'
import { useRef, useState } from 'react'
import { text } from '../words/shell'
import { useSearchGo } from './search'

export default function SearchBox({ operates }: { readonly operates: boolean }) {
  const [typed, setTyped] = useState('')
  const box = useRef<HTMLInputElement>(null)
  const search = useSearchGo(operates)
  useHotkeys([['/', () => box.current?.focus()]])
  return (
    <form role="search" onSubmit={(event) => { event.preventDefault(); search(typed) }}>
      <TextInput
        ref={box}
        type="search"
        aria-label={operates ? text.searchAll : text.search}
        placeholder={operates ? text.searchAllPlaceholder : text.searchPlaceholder}
        title={text.searchHelp}
        leftSection={<IconSearch size={16} />}
        rightSection={<Kbd size="xs" aria-hidden="true">/</Kbd>}
        value={typed}
        onChange={(event) => setTyped(event.currentTarget.value)}
        maxLength={300}
        autoComplete="off"
        spellCheck={false}
      />
    </form>
  )
}

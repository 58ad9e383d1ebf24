/** The filters: a search box, status and time, the rest in a form; active filters are shown as pills. */
import { Box as Wrapper, Button, Group, Pill, Popover, Select, TextInput } from '@mantine/core'
import { IconFilter, IconSearch } from '@tabler/icons-react'
import { useState } from 'react'
import { useGo } from '../../parts/Link'
import { FILTERS, type FilterChange, type FilterName, type Filters, PERIODS, type Period, periodStart, STATES, STATUSES } from '../../rules/message-list'
import { meaning } from '../../rules/search-box'
import { minute, number } from '../../words/format'
import { text } from '../../words/messages'
import { states } from '../../words/parts'
import { FilterForm } from './FilterForm'
import classes from './messages.module.css'

const OWN = 'own'

const isState = (value: string | null): value is (typeof STATES)[number] => (STATES as readonly (string | null)[]).includes(value)
// The status "failed" has the states of all mail that was not delivered.
const nameOf = (status: string): string => (status === 'failed' ? text.filter.notDelivered : (states as Readonly<Record<string, string>>)[status] ?? status)

export function FilterBar({ filters, change }: { readonly filters: Filters; readonly change: FilterChange }) {
  const [isOpen, setOpen] = useState(false)
  const set = FILTERS.filter((name) => filters[name] !== undefined)
  return (
    <>
      <Group gap="xs" align="center">
        {/* Where the header has no room for its own. */}
        <Wrapper hiddenFrom="sm" flex="1 1 260px"><Box change={change} /></Wrapper>
        <Select
          aria-label={text.filter.status}
          placeholder={text.filter.statusAny}
          data={[...STATUSES, ...STATES].map((status) => ({ value: status, label: nameOf(status) }))}
          value={filters.state ?? filters.status ?? null}
          onChange={(chosen) => change(isState(chosen) ? { state: chosen, status: undefined } : { status: chosen ?? undefined, state: undefined })}
          clearable
          w={170}
          comboboxProps={{ keepMounted: false }}
        />
        <PeriodSelect filters={filters} change={change} />
        <Popover opened={isOpen} onChange={setOpen} position="bottom-end" width={340} trapFocus withinPortal keepMounted={false}>
          <Popover.Target>
            <Button variant="default" leftSection={<IconFilter size={16} />} onClick={() => setOpen(!isOpen)}>
              {set.length === 0 ? text.filter.all : text.filter.allCount(number(set.length))}
            </Button>
          </Popover.Target>
          <Popover.Dropdown aria-label={text.filter.form}>
            <FilterForm
              filters={filters}
              apply={(given) => {
                change(given)
                setOpen(false)
              }}
            />
          </Popover.Dropdown>
        </Popover>
      </Group>
      {set.length > 0 && <Pills filters={filters} set={set} change={change} />}
    </>
  )
}

function Box({ change }: { readonly change: FilterChange }) {
  const [typed, setTyped] = useState('')
  const go = useGo()
  return (
    <form
      className={classes.search}
      onSubmit={(event) => {
        event.preventDefault()
        const found = meaning(typed)
        if (found?.kind === 'message') go(['messages', found.id])
        if (found?.kind === 'messages') change(found.filters)
        setTyped('')
      }}
    >
      <TextInput
        type="search"
        aria-label={text.filter.box}
        placeholder={text.filter.boxPlaceholder}
        leftSection={<IconSearch size={16} />}
        value={typed}
        onChange={(event) => setTyped(event.currentTarget.value)}
        maxLength={300}
        autoComplete="off"
        spellCheck={false}
      />
    </form>
  )
}

function PeriodSelect({ filters, change }: { readonly filters: Filters; readonly change: FilterChange }) {
  const chosen = (Object.keys(PERIODS) as Period[]).find((period) => filters.after === periodStart(period, new Date()) && filters.before === undefined)
  const isOwn = filters.after !== undefined || filters.before !== undefined
  const data = (Object.keys(PERIODS) as Period[]).map((period) => ({ value: period as string, label: text.periods[period] }))
  return (
    <Select
      aria-label={text.filter.period}
      placeholder={text.filter.periodAny}
      data={isOwn && chosen === undefined ? [...data, { value: OWN, label: text.filter.periodOwn, disabled: true }] : data}
      value={chosen ?? (isOwn ? OWN : null)}
      onChange={(period) => change({ after: period === null ? undefined : periodStart(period as Period, new Date()), before: undefined })}
      clearable
      w={170}
    />
  )
}

function Pills({ filters, set, change }: { readonly filters: Filters; readonly set: readonly FilterName[]; readonly change: FilterChange }) {
  return (
    <Group gap={6}>
      {set.map((name) => (
        <Pill
          key={name}
          size="md"
          maw="100%"
          withRemoveButton
          removeButtonProps={{ 'aria-label': text.filter.remove(text.names[name]), 'aria-hidden': false, tabIndex: 0 }}
          onRemove={() => change({ [name]: undefined })}
        >
          {text.filter.pill(text.names[name], shown(name, filters[name] ?? ''))}
        </Pill>
      ))}
      <Button size="compact-sm" variant="subtle" onClick={() => change(Object.fromEntries(set.map((name) => [name, undefined])))}>{text.filter.clear}</Button>
    </Group>
  )
}

function shown(name: FilterName, value: string): string {
  if (name === 'status' || name === 'state') return nameOf(value)
  if (name === 'source') return (text.sources as Readonly<Record<string, string>>)[value] ?? value
  if (name === 'after' || name === 'before') return Number.isNaN(new Date(value).getTime()) ? text.filter.wrongTime : minute(value)
  return value
}

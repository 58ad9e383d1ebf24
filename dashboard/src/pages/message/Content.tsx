/** The content of a message: HTML in its frame, text, headers, raw, attachments. Read when the user opens it. */
import { Alert, Anchor, Button, Group, SegmentedControl, Stack, Table, Tabs, Text } from '@mantine/core'
import { useQuery } from '@tanstack/react-query'
import { useMemo, useState } from 'react'
import { download, readDataUrl, readText } from '../../api/client'
import { useAccountId, useRead } from '../../api/queries'
import type { components } from '../../api/schema'
import { CodeBlock } from '../../parts/Copy'
import { HtmlFrame } from '../../parts/HtmlFrame'
import { notifyFailure } from '../../parts/notify'
import { Empty, Loaded } from '../../parts/States'
import { bareContentId, contentIdsIn, linksIn, loadsFromInternet, safeAddress, withPictures } from '../../rules/mail-html'
import { bytes } from '../../words/format'
import { text } from '../../words/message'
import classes from './message.module.css'

type MailContent = components['schemas']['MessageContent']

const RAW_MAX = 200_000
const PHONE = 375
const PICTURES_MAX = 20
const NO_PICTURES: Readonly<Record<string, string>> = {}

export function Content({ id, isStored, isForgotten }: { readonly id: string; readonly isStored: boolean; readonly isForgotten: boolean }) {
  const content = useRead(['message', id, 'content'], (api) => api.GET('/v1/messages/{id}/content', { params: { path: { id } } }), { every: false, enabled: isStored })
  if (isForgotten) return <Empty title={text.forgotten}>{text.forgottenNext}</Empty>
  if (!isStored) return <Empty title={text.gone}>{text.goneNext}</Empty>
  return <Loaded query={content}>{(data) => <Parts id={id} content={data.content} />}</Loaded>
}

function Parts({ id, content }: { readonly id: string; readonly content: MailContent }) {
  const { attachments } = content
  return (
    <Tabs defaultValue={content.html === null ? 'text' : 'html'} keepMounted={false}>
      <Tabs.List mb="sm">
        <Tabs.Tab value="html">{text.tabs.html}</Tabs.Tab>
        <Tabs.Tab value="text">{text.tabs.text}</Tabs.Tab>
        <Tabs.Tab value="headers">{text.tabs.headers}</Tabs.Tab>
        <Tabs.Tab value="raw">{text.tabs.raw}</Tabs.Tab>
        <Tabs.Tab value="attachments">{attachments.length === 0 ? text.tabs.attachments : text.attachmentsCount(attachments.length)}</Tabs.Tab>
      </Tabs.List>
      <Tabs.Panel value="html">{content.html === null ? <Text c="dimmed">{text.noHtml}</Text> : <Html id={id} html={content.html} attachments={attachments} />}</Tabs.Panel>
      <Tabs.Panel value="text">{content.text === null ? <Text c="dimmed">{text.noText}</Text> : <pre className={classes.text}>{content.text}</pre>}</Tabs.Panel>
      <Tabs.Panel value="headers"><Headers headers={content.headers} /></Tabs.Panel>
      <Tabs.Panel value="raw"><Raw id={id} /></Tabs.Panel>
      <Tabs.Panel value="attachments"><Attachments id={id} content={content} /></Tabs.Panel>
    </Tabs>
  )
}

/** The pictures attached to the message, by content id. */
function usePictures(id: string, html: string, attachments: MailContent['attachments']): Readonly<Record<string, string>> {
  const account = useAccountId()
  const wanted = contentIdsIn(html)
  const files = attachments.flatMap(({ part, content_id: contentId, content_type: type }) =>
    contentId !== null && wanted.includes(bareContentId(contentId)) && type.startsWith('image/') ? [{ part, name: bareContentId(contentId), type }] : [],
  ).slice(0, PICTURES_MAX)
  const pictures = useQuery({
    queryKey: [account, 'message', id, 'pictures'],
    queryFn: async () => Object.fromEntries(await Promise.all(
      files.map(async ({ part, name, type }) => [name, await readDataUrl(`/v1/messages/${encodeURIComponent(id)}/attachments/${String(part)}`, type)] as const),
    )),
    enabled: files.length > 0,
    refetchInterval: false,
    staleTime: Infinity,
  })
  return pictures.data ?? NO_PICTURES
}

function Html({ id, html: given, attachments }: { readonly id: string; readonly html: string; readonly attachments: MailContent['attachments'] }) {
  const pictures = usePictures(id, given, attachments)
  const html = useMemo(() => withPictures(given, pictures), [given, pictures])
  const [remote, setRemote] = useState(false)
  const [isNarrow, setNarrow] = useState(false)
  const { links, isCut } = useMemo(() => linksIn(given), [given])
  return (
    <Stack gap="sm">
      <Group justify="space-between">
        <SegmentedControl
          size="xs"
          aria-label={text.width}
          value={isNarrow ? 'narrow' : 'wide'}
          onChange={(value) => setNarrow(value === 'narrow')}
          data={[{ value: 'wide', label: text.wide }, { value: 'narrow', label: text.narrow }]}
        />
      </Group>
      {loadsFromInternet(given) && (remote ? <Text size="sm" c="dimmed">{text.picturesShown}</Text> : (
        <Alert color="yellow" p="xs">
          <Group gap="xs">
            <Text size="sm" flex="1 1 220px">{text.picturesWhy}</Text>
            <Button size="xs" variant="default" onClick={() => setRemote(true)}>{text.pictures}</Button>
          </Group>
        </Alert>
      ))}
      {isNarrow ? <HtmlFrame html={html} remote={remote} width={PHONE} /> : <HtmlFrame html={html} remote={remote} />}
      {links.length > 0 && (
        <div>
          <Text size="sm" fw={600}>{text.links(links.length)}</Text>
          <ul className={classes.links}>
            {links.map((link) => <li key={link}><MailLink link={link} /></li>)}
          </ul>
          {isCut && <Text size="sm" c="dimmed">{text.linksCut}</Text>}
        </div>
      )}
    </Stack>
  )
}

function MailLink({ link }: { readonly link: string }) {
  const address = safeAddress(link)
  if (address === null) return link
  return <Anchor inherit href={address} target="_blank" rel="noreferrer noopener" underline="always">{address}</Anchor>
}

function Headers({ headers }: { readonly headers: MailContent['headers'] }) {
  return (
    <Table.ScrollContainer minWidth={300}>
      <Table layout="fixed">
        <Table.Thead><Table.Tr><Table.Th w="30%">{text.headerName}</Table.Th><Table.Th>{text.headerValue}</Table.Th></Table.Tr></Table.Thead>
        <Table.Tbody>
          {headers.map(({ name, value }, place) => (
            <Table.Tr key={`${String(place)} ${name}`}><Table.Td className={classes.break}>{name}</Table.Td><Table.Td className={classes.break}>{value}</Table.Td></Table.Tr>
          ))}
        </Table.Tbody>
      </Table>
    </Table.ScrollContainer>
  )
}

function Raw({ id }: { readonly id: string }) {
  const account = useAccountId()
  const path = `/v1/messages/${encodeURIComponent(id)}/raw`
  const raw = useQuery({ queryKey: [account, 'message', id, 'raw'], queryFn: () => readText(path), refetchInterval: false, staleTime: Infinity })
  return (
    <Stack gap="sm" align="stretch">
      <Group><Button size="xs" variant="default" onClick={() => void download(path, `${id}.eml`).catch(notifyFailure)}>{text.downloadRaw}</Button></Group>
      <Loaded query={raw}>
        {(source) => (
          <>
            {source.length > RAW_MAX && <Text size="sm" c="dimmed">{text.rawTooLarge(bytes(RAW_MAX))}</Text>}
            <CodeBlock code={source.slice(0, RAW_MAX)} name={text.tabs.raw} />
          </>
        )}
      </Loaded>
    </Stack>
  )
}

function Attachments({ id, content }: { readonly id: string; readonly content: MailContent }) {
  if (content.attachments.length === 0) return <Text c="dimmed">{text.noAttachments}</Text>
  return (
    <Stack gap="xs">
      {content.attachments.map((file) => {
        const name = file.filename ?? text.unnamed(file.part)
        const path = `/v1/messages/${encodeURIComponent(id)}/attachments/${String(file.part)}`
        return (
          <Group key={file.part} justify="space-between" gap="xs">
            <div className={classes.break}>
              <Text size="sm" fw={600}>{name}</Text>
              <Text size="xs" c="dimmed">{[file.content_type, bytes(file.size), ...(file.is_inline ? [text.inline] : [])].join(' · ')}</Text>
            </div>
            <Button size="xs" variant="default" aria-label={text.downloadNamed(name)} onClick={() => void download(path, name).catch(notifyFailure)}>{text.download}</Button>
          </Group>
        )
      })}
      {content.is_shortened && <Text size="sm" c="dimmed">{text.partsCut}</Text>}
    </Stack>
  )
}

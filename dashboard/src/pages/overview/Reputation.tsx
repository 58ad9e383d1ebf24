import { Progress, SimpleGrid, Stack, Text } from '@mantine/core'
import type { components } from '../../api/schema'
import { Section } from '../../parts/Section'
import { StatusBadge, toneColor, type Tone } from '../../parts/Status'
import { Ago } from '../../parts/Time'
import { stepsToMark } from '../../rules/figures'
import { number, percent } from '../../words/format'
import { text } from '../../words/overview'

type Counted = components['schemas']['Reputation']
type Share = components['schemas']['ReputationShare']

const TONES: Readonly<Record<Counted['verdict'], Tone>> = { well: 'good', warn: 'warn', suspend: 'bad' }

export function Reputation({ reputation }: { readonly reputation: Counted | null }) {
  if (reputation === null) return <Section title={text.reputation}><Text size="sm">{text.reputationUnknown}</Text></Section>
  const { verdict, results, results_min: resultsMin, exempt } = reputation
  const isJudged = results >= resultsMin
  return (
    <Section title={text.reputation} mark={<StatusBadge state={verdict} label={isJudged ? text.verdicts[verdict] : text.unjudged} tone={isJudged ? TONES[verdict] : 'plain'} />}>
      <SimpleGrid cols={{ base: 1, sm: 2 }} spacing="xl">
        <Meter name={text.bounces} of={reputation.bounces} reputation={reputation} />
        <Meter name={text.complaints} of={reputation.complaints} reputation={reputation} />
      </SimpleGrid>
      <Text size="sm" c="dimmed">
        {text.reputationSince(number(results))} <Ago at={reputation.counted_since} />{'. '}
        {!isJudged && text.notJudged(number(resultsMin))} {exempt && text.exempt}
      </Text>
    </Section>
  )
}

function Meter({ name, of, reputation }: { readonly name: string; readonly of: Share; readonly reputation: Counted }) {
  const isJudged = reputation.results >= reputation.results_min
  const steps = stepsToMark(of.count, reputation.results, reputation.results_min, of.suspend)
  const isWarned = of.percent >= of.warn.percent && of.count >= of.warn.count
  const tone: Tone = !isJudged ? 'plain' : steps === 0 ? 'bad' : isWarned ? 'warn' : 'good'
  return (
    <Stack gap={6}>
      <Text size="sm" fw={600}>{name}</Text>
      <Progress value={Math.min(100, (of.percent / of.suspend.percent) * 100)} color={toneColor(tone)} size="lg" aria-label={name} />
      <Text size="sm">{text.levels(percent(of.percent / 100), percent(of.warn.percent / 100), percent(of.suspend.percent / 100))}</Text>
      {isJudged && !reputation.exempt && <Text size="sm" c="dimmed">{steps === 0 ? text.reached : text.stepsLeft(number(steps))}</Text>}
    </Stack>
  )
}

import { expect, test } from 'vitest'
import { again } from './again'

function failing(times: number) {
  let asked = 0
  return () => {
    asked += 1
    return asked > times ? Promise.resolve(asked) : Promise.reject(new Error(String(asked)))
  }
}

test('a request that fails temporarily is repeated', async () => {
  expect(await again(failing(2), 0, () => true)).toBe(3)
})

test('an error that is not temporary ends the repetition', async () => {
  await expect(again(failing(5), 0, (_, tries) => tries < 3)).rejects.toThrow('3')
})

import { expect, test } from 'vitest'
import { again } from './again'

function failing(times: number) {
  let asked = 0
  return () => {
    asked += 1
    return asked > times ? Promise.resolve(asked) : Promise.reject(new Error(String(asked)))
  }
}

test('what fails for a moment is asked for again', async () => {
  expect(await again(failing(2), 0, () => true)).toBe(3)
})

test('an error that is not worth it ends the asking', async () => {
  await expect(again(failing(5), 0, (_, tries) => tries < 3)).rejects.toThrow('3')
})

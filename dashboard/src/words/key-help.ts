/** Texts of the keyboard shortcuts. */
import { words } from './words'

export const text = words({
  title: 'Keyboard shortcuts',
  keys: [
    ['/', 'Search messages'],
    ['Ctrl K', 'Go to a page or run a command'],
    ['j', 'Next message'],
    ['k', 'Previous message'],
    ['Enter', 'Open the message'],
    ['x', 'Select the message'],
    ['?', 'Show these shortcuts'],
  ],
})

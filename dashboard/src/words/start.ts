/** Texts of the page "start". */
import { words } from './words'

export const text = words({
  title: 'Start',
  about: 'The first steps of a new account.',
  progress: (done: string, all: string) => `${done} of ${all} steps done`,
  complete: 'All steps are done',
  completeNext: 'The overview shows how your mail does.',
  toOverview: 'Open the overview',
  done: 'done',
  steps: 'First steps',
  cards: {
    testMail: 'Mail yourself now',
    domain: 'Add your domain',
    key: 'Send from your program',
    webhook: 'Receive results by webhook',
    secondFactor: 'Protect your sign-in',
    invite: 'Invite your team',
  },
  testMail: {
    why: (address: string) => `A mail goes to ${address}, delivered and charged like any other. Watch it arrive.`,
    send: 'Send me a mail',
    again: 'Send me another mail',
    failed: 'The mail was not accepted',
    waiting: 'The mail is on its way…',
    timeline: 'See what happened to it',
  },
  domain: {
    why: 'Add a domain, copy its DNS records to your DNS host, and send from your own addresses. The records are checked while you look.',
    open: 'Add a domain',
    unverified: 'Not verified yet:',
  },
  key: {
    why: 'An API key lets your program send. It is shown once, so store it as POSTHOUSE_API_KEY.',
    open: 'Make a key',
    snippets: 'Then send a first mail to the simulator, which delivers to no mailbox:',
    waiting: 'Waiting for your first request…',
  },
  webhook: {
    why: 'Each delivery, bounce and failure is sent to your URL, signed.',
    open: 'Set up a webhook',
    ping: 'Send a ping',
    pingWhy: (url: string) => `A test event goes to ${url}.`,
    pinging: 'Waiting for the answer…',
    answered: (status: string) => `Your server answered with ${status}.`,
    unanswered: 'Your server did not answer with 2xx.',
    failed: 'The ping was not sent',
    delivery: 'See the call',
  },
  secondFactor: {
    why: 'With a code of an app, a stolen password alone opens nothing.',
    open: 'Set up a second factor',
  },
  invite: {
    why: 'Invite colleagues, each with the least role they need.',
    open: 'Invite a colleague',
  },
})

/** Texts that strangers wrote, such as subjects and addresses, next to texts of our own. */

// Overrides, embeddings and isolates of direction. Marks such as U+200F stay: Hebrew and Arabic need them, and they turn nothing.
const TURNING = /[\u202a-\u202e\u2066-\u2069]/g

/** Without the characters that turn what follows: "Pay U+202E ecilop" must not read "Pay police". */
export const unturned = (text: string): string => text.replace(TURNING, '\ufffd')

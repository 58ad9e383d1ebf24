/** The version of the library, as its package and its User-Agent tell it. */
export const VERSION = "0.1.0";

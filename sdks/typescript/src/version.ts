/** The version of the library, as in its package and its User-Agent. */
export const VERSION = "0.1.0";

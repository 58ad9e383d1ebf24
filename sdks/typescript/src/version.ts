/** The version of the library, as in its package and its User-Agent. */
export const VERSION = "1.0.0-rc.1";

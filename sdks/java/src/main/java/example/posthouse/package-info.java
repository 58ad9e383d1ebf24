/**
 * Sends email through a Posthouse, reports its status, and verifies webhooks.
 *
 * <p>{@link example.posthouse.PosthouseClient} is where to begin. All exceptions are a
 * {@link example.posthouse.PosthouseException}; absent values are null, and lists and maps are never
 * null. Nothing but the standard library is used.
 */
package example.posthouse;

/**
 * Sends email through a Posthouse, tells what became of it, and verifies webhooks.
 *
 * <p>{@link example.posthouse.PosthouseClient} is where to begin. All exceptions are a
 * {@link example.posthouse.PosthouseException}; what there is nothing to tell of is null, and lists and maps are never
 * null. Nothing but the standard library is used.
 */
package example.posthouse;

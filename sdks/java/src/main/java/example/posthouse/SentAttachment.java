package example.posthouse;

/**
 * What the service says of an attachment it took.
 *
 * @param size in bytes
 * @param contentId null if it is no inline image
 */
public record SentAttachment(String filename, String contentType, int size, String contentId) {}

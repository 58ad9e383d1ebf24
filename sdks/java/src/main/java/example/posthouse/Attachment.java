package example.posthouse;

import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.Map;

/** A file of an email. */
public final class Attachment {
    private final String filename;
    private final byte[] content;
    private final String contentType;
    private final String contentId;

    private Attachment(String filename, byte[] content, String contentType, String contentId) {
        this.filename = Checks.filename(filename);
        this.content = content;
        this.contentType = contentType;
        this.contentId = contentId;
    }

    public static Attachment of(String filename, byte[] content) {
        return new Attachment(filename, content.clone(), null, null);
    }

    /** The file is read now, and attached under its own name. */
    public static Attachment ofFile(Path path) throws IOException {
        Path name = path.getFileName();
        return new Attachment(name == null ? "" : name.toString(), Files.readAllBytes(path), null, null);
    }

    /** The stream is read to its end now, and left open. */
    public static Attachment ofStream(InputStream stream, String filename) throws IOException {
        return new Attachment(filename, stream.readAllBytes(), null, null);
    }

    public Attachment withFilename(String other) {
        return new Attachment(other, content, contentType, contentId);
    }

    /** Without one it is guessed from the file name's extension, here or by the service. */
    public Attachment withContentType(String other) {
        return new Attachment(filename, content, other, contentId);
    }

    /** Makes it an inline image, which the HTML shows as {@code cid:<contentId>}. */
    public Attachment withContentId(String other) {
        return new Attachment(filename, content, contentType, other);
    }

    public String filename() {
        return filename;
    }

    public byte[] content() {
        return content.clone();
    }

    public String contentType() {
        return contentType;
    }

    public String contentId() {
        return contentId;
    }

    Map<String, Object> toJson() {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("filename", filename);
        // It stays even if it is empty: an empty file is a file.
        fields.put("content", Base64.getEncoder().encodeToString(content));
        String type = contentType == null || contentType.isEmpty() ? MediaTypes.of(filename) : contentType;
        if (type != null) {
            fields.put("content_type", type);
        }
        if (contentId != null && !contentId.isEmpty()) {
            fields.put("content_id", contentId);
        }
        return fields;
    }

    @Override
    public String toString() {
        return "Attachment[" + filename + ", " + content.length + " bytes]";
    }
}

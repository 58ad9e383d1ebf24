package example.posthouse;

import java.util.Locale;
import java.util.Map;

/** Which content type a file name stands for, the same on every machine. */
final class MediaTypes {
    private static final Map<String, String> BY_EXTENSION = Map.ofEntries(
            Map.entry("css", "text/css"),
            Map.entry("csv", "text/csv"),
            Map.entry("doc", "application/msword"),
            Map.entry("docx", "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
            Map.entry("gif", "image/gif"),
            Map.entry("gz", "application/gzip"),
            Map.entry("htm", "text/html"),
            Map.entry("html", "text/html"),
            Map.entry("ics", "text/calendar"),
            Map.entry("jpeg", "image/jpeg"),
            Map.entry("jpg", "image/jpeg"),
            Map.entry("json", "application/json"),
            Map.entry("log", "text/plain"),
            Map.entry("md", "text/markdown"),
            Map.entry("mp3", "audio/mpeg"),
            Map.entry("mp4", "video/mp4"),
            Map.entry("ods", "application/vnd.oasis.opendocument.spreadsheet"),
            Map.entry("odt", "application/vnd.oasis.opendocument.text"),
            Map.entry("pdf", "application/pdf"),
            Map.entry("png", "image/png"),
            Map.entry("ppt", "application/vnd.ms-powerpoint"),
            Map.entry("pptx", "application/vnd.openxmlformats-officedocument.presentationml.presentation"),
            Map.entry("rtf", "application/rtf"),
            Map.entry("svg", "image/svg+xml"),
            Map.entry("tar", "application/x-tar"),
            Map.entry("tif", "image/tiff"),
            Map.entry("tiff", "image/tiff"),
            Map.entry("txt", "text/plain"),
            Map.entry("vcf", "text/vcard"),
            Map.entry("wav", "audio/wav"),
            Map.entry("webp", "image/webp"),
            Map.entry("xls", "application/vnd.ms-excel"),
            Map.entry("xlsx", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"),
            Map.entry("xml", "application/xml"),
            Map.entry("zip", "application/zip"));

    private MediaTypes() {}

    /** Null if the extension isn't one of ours: the service knows more of them. */
    static String of(String filename) {
        int dot = filename.lastIndexOf('.');
        return dot < 0 ? null : BY_EXTENSION.get(filename.substring(dot + 1).toLowerCase(Locale.ROOT));
    }
}

<?php

declare(strict_types=1);

namespace Posthouse;

/**
 * A file of an email; with a content id it is an inline image, which the HTML shows as `cid:<content id>`.
 *
 * Without a content type it is guessed from the file name's extension, here or by the service.
 */
final class Attachment
{
    /** @param string $content the bytes */
    public function __construct(
        public readonly string $filename,
        public readonly string $content,
        public readonly ?string $contentType = null,
        public readonly ?string $contentId = null,
    ) {
        Checks::filename($filename);
    }

    /** The file is read now; its own name is used unless another is given. */
    public static function fromFile(
        string $path,
        ?string $filename = null,
        ?string $contentType = null,
        ?string $contentId = null,
    ): self {
        $content = is_file($path) ? @file_get_contents($path) : false;
        if ($content === false) {
            throw new InvalidArgumentException("the file {$path} can't be read");
        }
        // basename() depends on the locale, and may lose letters that aren't ASCII.
        $parts = explode('/', strtr($path, DIRECTORY_SEPARATOR, '/'));

        return new self($filename ?? end($parts), $content, $contentType, $contentId);
    }

    /**
     * The stream is read to its end now, and left open.
     *
     * @param resource $stream
     */
    public static function fromStream(
        $stream,
        string $filename,
        ?string $contentType = null,
        ?string $contentId = null,
    ): self {
        $content = is_resource($stream) ? stream_get_contents($stream) : false;
        if ($content === false) {
            throw new InvalidArgumentException("the stream can't be read");
        }

        return new self($filename, $content, $contentType, $contentId);
    }

    /** @return array<string, string> */
    public function toArray(): array
    {
        $fields = [
            'filename' => $this->filename,
            'content_type' => $this->contentType ?: MediaTypes::ofFilename($this->filename),
            'content_id' => $this->contentId,
        ];

        // The content stays even if it is empty: an empty file is a file.
        return array_filter($fields, static fn (?string $value): bool => $value !== null && $value !== '')
            + ['content' => base64_encode($this->content)];
    }
}

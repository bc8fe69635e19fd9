"""Reading text files line by line: compression, encoding, and errors that name the file and the line."""

import gzip
import hashlib
import io
import lzma
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import IO, cast

COMPRESSIONS = (".gz", ".xz", ".zst")
# What a line that isn't UTF-8 holds after decoding. A U+FFFD that was in the file is the trace of an earlier failure.
REPLACEMENT = "\ufffd"
CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")  # category Cc without tab, which text has
UTF8_BOM = b"\xef\xbb\xbf"
CHUNK_BYTES = 1 << 20

BINARY_HEAD_BYTES = 8000  # a NUL byte within so many means binary, as for git; a later one is a control character
# First bytes of what is often mistaken for a text file, and what to do about it.
MAGIC = {
    b"\x1f\x8b": 'is gzip data: end its name in ".gz"',
    b"\xfd7zXZ\0": 'is xz data: end its name in ".xz"',
    b"\x28\xb5\x2f\xfd": 'is zstandard data: end its name in ".zst"',
    b"PK\x03\x04": "is a zip archive: unpack it",
    b"%PDF-": "is a PDF: extract its text",
    b"\xff\xfe": "is UTF-16: convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)",
    b"\xfe\xff": "is UTF-16: convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)",
}


def file_digest(*paths: Path) -> str:
    """SHA-256 in hex of the files' bytes, in the given order, whatever their names."""
    digest = hashlib.sha256()
    for path in paths:
        with _open_plain(path) as file:
            content = hashlib.sha256()
            while chunk := file.read(CHUNK_BYTES):
                content.update(chunk)
            digest.update(content.digest())
    return digest.hexdigest()


@contextmanager
def open_binary(path: Path) -> Iterator[IO[bytes]]:
    """Opens a plain, gzip, xz or zstandard file (told by its suffix) for reading bytes.

    Raises:
        ValueError: The file can't be opened, its compressed data is corrupt or cut short, or it is .zst and the
            `zstandard` package isn't installed.
    """
    with _open_plain(path) as plain, _decompressed(plain, path) as file:
        try:
            yield file
        except (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError) as error:
            raise ValueError(
                f"{path}: the {path.suffix} data is corrupt or cut short ({error}): fetch or compress it again"
            ) from error


def _open_plain(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except OSError as error:
        raise ValueError(f"{path}: can't be opened: {error.strerror or error}") from error


def _decompressed(plain: IO[bytes], path: Path) -> IO[bytes]:
    if path.suffix == ".gz":
        return cast(IO[bytes], gzip.open(plain))
    if path.suffix == ".xz":
        return lzma.open(plain)
    if path.suffix == ".zst":
        return io.BufferedReader(_ZstdReader(plain, path), CHUNK_BYTES)
    return plain


class _ZstdReader(io.RawIOBase):
    """A .zst file's content. Unlike zstandard's own stream reader, it notices when the file is cut short."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        try:
            import zstandard
        except ImportError as error:
            raise ValueError(f"{path}: reading .zst needs the zstandard package: pip install zstandard") from error
        self._zstd = zstandard
        self._file = file
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._started = False  # whether the current frame has been given any bytes
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        while not self._ready:
            if self._frame.eof:
                data = self._frame.unused_data
                self._frame, self._started = self._zstd.ZstdDecompressor().decompressobj(), False
            else:
                data = b""
            data = data or self._file.read(CHUNK_BYTES)
            if not data:
                if self._started:
                    raise EOFError("the last frame has no end")
                return 0
            self._started = True
            try:
                self._ready = memoryview(self._frame.decompress(data))
            except self._zstd.ZstdError as error:
                raise EOFError(str(error)) from error
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count


def _binary_lines(path: Path) -> Iterator[bytes]:
    """A file's lines; a ValueError if its first bytes, decompressed, are those of something other than UTF-8 text."""
    with open_binary(path) as file:  # once: it may be a pipe
        head = file.read(BINARY_HEAD_BYTES)
        _check_text(path, head)
        yield from io.BytesIO(head + file.readline())
        yield from file


def _check_text(path: Path, head: bytes) -> None:
    for magic, what in MAGIC.items():
        if head.startswith(magic):
            raise ValueError(f"{path}: isn't a text file: it {what}")
    if b"\0" in head:
        raise ValueError(f"{path}: isn't a text file: byte {head.index(0) + 1:,} is NUL: give UTF-8 text")


def read_lines(path: Path, *, strict: bool) -> Iterator[str]:
    """Yields a text file's lines, split at "\\n" only.

    U+2028, U+0085 and the like stay inside a line, since the files of a parallel corpus count lines as `wc -l` does.
    One "\\r" before the "\\n" and a byte order mark at the start of the file are taken off.

    Args:
        path: A plain or compressed UTF-8 file.
        strict: Whether a line that isn't UTF-8 is an error; otherwise its bad bytes become U+FFFD.

    Raises:
        ValueError: The file isn't text, is corrupt, or (strict) has a line that isn't UTF-8.
    """
    for number, line in enumerate(_binary_lines(path), start=1):
        if number == 1:
            line = line.removeprefix(UTF8_BOM)
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        try:
            yield line.decode()
        except UnicodeDecodeError as error:
            if strict:
                raise ValueError(
                    f"{path}:{number}: byte {error.start + 1} of the line (0x{line[error.start]:02X}) isn't UTF-8: "
                    "repair the line or convert the file"
                ) from error
            yield line.decode(errors="replace")


def read_parallel(source: Path, target: Path, *, strict: bool) -> Iterator[tuple[str, str]]:
    """Yields the pairs of two files, line by line.

    Raises:
        ValueError: The files have different line counts, or one can't be read.
    """
    sources, targets = read_lines(source, strict=strict), read_lines(target, strict=strict)
    for count, (source_line, target_line) in enumerate(zip_longest(sources, targets)):
        if source_line is None or target_line is None:
            rest = 1 + sum(1 for _ in (sources if target_line is None else targets))
            longer, shorter = (source, target) if target_line is None else (target, source)
            raise ValueError(
                f"{longer} has {count + rest:,} lines but {shorter} has {count:,}: line n of one must translate "
                "line n of the other"
            )
        yield source_line, target_line


def read_tsv(path: Path, *, strict: bool) -> Iterator[tuple[str, str]]:
    """Yields the pairs of a file of `source TAB target` lines, taken as they are: no quoting, no escapes.

    Raises:
        ValueError: A line hasn't exactly two fields, or the file can't be read.
    """
    for number, line in enumerate(read_lines(path, strict=strict), start=1):
        fields = line.split("\t")
        if len(fields) != 2:
            raise ValueError(
                f"{path}:{number}: has {len(fields)} tab-separated fields, needs exactly 2 (source TAB target)"
            )
        yield fields[0], fields[1]

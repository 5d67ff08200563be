"""Whether bytes are UTF-8, and if not, what they look like: sentences with a remedy. Nothing is ever decoded
by a guess.
"""

from __future__ import annotations

import codecs
import re
import shlex

_BOMS = (
    (codecs.BOM_UTF32_LE, "UTF-32LE"),
    (codecs.BOM_UTF32_BE, "UTF-32BE"),
    (codecs.BOM_UTF16_LE, "UTF-16LE"),
    (codecs.BOM_UTF16_BE, "UTF-16BE"),
)
# Which of the first four bytes are zero when a text that begins with two ASCII characters is in one of these.
_ZEROS: dict[tuple[bool, ...], str] = {
    (False, True, True, True): "UTF-32LE",
    (True, True, True, False): "UTF-32BE",
    (False, True, False, True): "UTF-16LE",
    (True, False, True, False): "UTF-16BE",
}
_SAMPLE_BYTES = 4096
CONTROL = re.compile(
    rb"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]"
)  # bytes of no text in one byte a letter, nor in UTF-8
_HIGH_RUN = re.compile(rb"[\x80-\xff]+")
_JAPANESE = re.compile("[\u3000-\u30ff\u4e00-\u9fff\uff00-\uffef]")


def wide_encoding(head: bytes) -> str | None:
    """Name of the UTF-16 or UTF-32 flavour that ``head`` begins like, by its byte-order mark, its zero bytes
    or the few upper halves of its characters; None for others.
    """
    for mark, name in _BOMS:
        if head.startswith(mark):
            return name
    return _ZEROS.get(tuple(byte == 0 for byte in head[:4])) or _unmarked_wide(head[:_SAMPLE_BYTES])


def refuse_wide(name: str, encoding: str) -> str:
    """The sentence for a file in UTF-16 or UTF-32."""
    return f"the file is in {encoding}, not UTF-8 (seen at byte 0); {_remedy(name, encoding)}"


def refuse_bytes(name: str, data: bytes, start: int, offset: int) -> str:
    """The sentence for ``data`` whose byte at ``start`` is not UTF-8; ``offset`` is that byte's place in the
    file.
    """
    sample = data[max(0, start - _SAMPLE_BYTES // 2) : start + _SAMPLE_BYTES // 2]
    if len(CONTROL.findall(sample)) * 50 > len(sample):
        return (
            f"not text: byte {offset} is 0x{data[start]:02x}, among others that no encoding of a text has; "
            f"see what wrote the file, and name one with the text itself"
        )
    looks, encoding = _guess(sample)
    return (
        f"not UTF-8: byte {offset} is 0x{data[start]:02x}; it looks like {looks}; {_remedy(name, encoding)}"
    )


def _unmarked_wide(sample: bytes) -> str | None:
    """Name of the UTF-16 flavour of a sample without ASCII at its start nor a mark: every second byte, the
    upper half of a character, is one of very few, and what comes out is text. Bytes that are UTF-8 as well
    must be of no text there: a control character or two in a short one say nothing.
    """
    utf8 = _is_utf8(sample)
    for name, upper, lower in (
        ("UTF-16LE", sample[1::2], sample[0::2]),
        ("UTF-16BE", sample[0::2], sample[1::2]),
    ):
        if utf8 and not (_steering(upper) >= 0.75 and _steering(lower) <= 0.25):
            continue
        if len(upper) >= 8 and len(set(upper)) <= 6 and CONTROL.search(upper):
            text = sample[: len(sample) // 2 * 2].decode(name, "replace")
            if sum(char.isalnum() or char.isspace() for char in text) * 4 > len(text) * 3:
                return name
    return None


def _is_utf8(sample: bytes) -> bool:
    """Whether ``sample`` is the beginning of UTF-8, cut anywhere."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample)
    except UnicodeDecodeError:
        return False
    return True


def _steering(data: bytes) -> float:
    """The share of bytes below the space: of UTF-16, the upper halves of most alphabets."""
    return sum(byte < 0x20 for byte in data) / max(1, len(data))


def _remedy(name: str, encoding: str) -> str:
    drop = " -c" if encoding == "UTF-8" else ""
    plain = re.sub(r"\.(gz|zst)$", "", name.rsplit("/", 1)[-1])
    return (
        f"convert it first, for example: iconv{drop} -f {encoding} -t UTF-8 {shlex.quote(plain)} > "
        f"{shlex.quote('utf8-' + plain)}"
    )


def _guess(sample: bytes) -> tuple[str, str]:
    """(words, iconv's name) for a sample that is not UTF-8. A help for the reader, never used to decode."""
    good = sum(not char.isascii() for char in sample.decode("utf-8", "ignore"))
    bad = sample.decode("utf-8", "replace").count("\ufffd")
    if good > bad:
        return "UTF-8 with damaged bytes", "UTF-8"
    if _is_japanese(sample):
        return "Shift-JIS", "SHIFT_JIS"
    runs = _HIGH_RUN.findall(sample)
    if (
        runs and sum(len(run) == 1 for run in runs) * 10 >= len(runs) * 7
    ):  # accented letters stand alone among ASCII ones
        return "Latin-1 or Windows-1252", "WINDOWS-1252"
    return "an older encoding such as Latin-1, Windows-1251 or GBK", "WINDOWS-1252"


def _is_japanese(sample: bytes) -> bool:
    if not re.search(rb"[\x81-\x9f]", sample):
        return False
    text = ""
    for skipped in (0, 1):  # the sample may begin in the middle of a character
        try:
            text = codecs.getincrementaldecoder("shift_jis")().decode(sample[skipped:])
            break
        except UnicodeDecodeError:
            continue
    shown = [char for char in text if not char.isspace()]
    return bool(shown) and len(_JAPANESE.findall(text)) * 5 >= len(shown)

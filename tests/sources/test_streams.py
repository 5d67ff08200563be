"""Decompression up to the fault, lines, and refused encodings."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pipeline.sources.encoding import wide_encoding
from pipeline.sources.files import SourceFile
from pipeline.sources.streams import BLOCK_BYTES, DamagedFile, Line, read_blocks, read_lines
from tests.sources.reading import json_lines, packed, put, read

ROWS = [{"id": str(number), "text": f"text {number} " + "abc" * (number % 7)} for number in range(40)]


def unpack(path: Path, compression: str) -> tuple[bytes, str]:
    """(what could be read, the fault's reason or "")."""
    found = b""
    try:
        for block in read_blocks(SourceFile(path.name, str(path), path.name, "jsonl", compression)):
            found += block
    except DamagedFile as fault:
        return found, fault.reason
    return found, ""


@pytest.mark.parametrize("compression", [".gz", ".zst"])
def test_truncated_at_every_length_gives_all_rows_before_and_one_reject(
    tmp_path: Path, compression: str
) -> None:
    # Three members or frames, so that rows come through before the end.
    data = b"".join(packed(json_lines(ROWS[at : at + 14]), compression) for at in range(0, len(ROWS), 14))
    ends = {
        len(packed(json_lines(ROWS[:14]), compression)),
        len(data) - len(packed(json_lines(ROWS[28:]), compression)),
        len(data),
    }
    before = 0
    for length in range(len(data) + 1):
        documents, rejects = read(put(tmp_path / f"a.jsonl{compression}", data[:length]))
        assert [document.id for document in documents] == [row["id"] for row in ROWS[: len(documents)]]
        assert len(documents) >= before
        assert len(rejects) == (0 if length in ends else 1)
        before = len(documents)
    assert before == len(ROWS)


@pytest.mark.parametrize("compression", [".gz", ".zst"])
def test_a_truncated_large_file_names_the_place(tmp_path: Path, compression: str) -> None:
    rows = [{"id": str(number), "text": f"{number * 7919 % 100003} " * 30} for number in range(20000)]
    data = packed(json_lines(rows), compression)
    documents, rejects = read(put(tmp_path / f"a.jsonl{compression}", data[: len(data) * 2 // 3]))
    assert len(documents) > 10000
    assert "truncated" in rejects[0].reason
    assert rejects[0].origin.line == len(documents) + 1
    assert rejects[0].origin.offset == len(json_lines(rows[: len(documents)]))


def test_a_flipped_byte_costs_nothing_before_it(tmp_path: Path) -> None:
    data = json_lines({"id": str(number), "text": f"{number * 7919 % 100003}"} for number in range(3000))
    sound = gzip.compress(data)
    at = len(sound) // 2
    damaged = sound[:at] + bytes([sound[at] ^ 0xFF]) + sound[at + 1 :]
    documents, rejects = read(put(tmp_path / "a.jsonl.gz", damaged))
    assert len(documents) > 1000
    assert [int(document.id) for document in documents[:1000]] == list(range(1000))
    assert "damaged" in rejects[-1].reason


def test_zero_padding_after_gzip_is_fine_and_garbage_is_told(tmp_path: Path) -> None:
    sound = gzip.compress(json_lines(ROWS))
    assert unpack(put(tmp_path / "a.gz", sound + bytes(1000)), "gz") == (json_lines(ROWS), "")
    found, reason = unpack(put(tmp_path / "b.gz", sound + b"garbage"), "gz")
    assert found == json_lines(ROWS)
    assert "damaged" in reason


@pytest.mark.parametrize("compression", ["gz", "zst"])
def test_a_bomb_comes_in_blocks(tmp_path: Path, compression: str) -> None:
    path = put(tmp_path / "bomb", packed(bytes(1 << 26), f".{compression}"))
    sizes = [len(block) for block in read_blocks(SourceFile("bomb", str(path), "bomb", "jsonl", compression))]
    assert sum(sizes) == 1 << 26
    assert max(sizes) <= (BLOCK_BYTES if compression == "gz" else 1 << 26)


def test_zstandard_without_a_size_and_with_several_frames(tmp_path: Path) -> None:
    stream = zstandard.ZstdCompressor().compressobj()
    first = stream.compress(json_lines(ROWS)) + stream.flush()
    assert unpack(put(tmp_path / "a.zst", first + packed(b"end", ".zst")), "zst") == (
        json_lines(ROWS) + b"end",
        "",
    )


@given(
    data=st.binary(max_size=200), cuts=st.lists(st.integers(0, 200), max_size=5), any_newline=st.booleans()
)
def test_lines_do_not_depend_on_blocks(data: bytes, cuts: list[int], any_newline: bool) -> None:
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    blocks = [data[start:end] for start, end in pairwise(places)]
    lines = list(read_lines(iter(blocks), any_newline=any_newline))
    assert lines == list(read_lines(iter([data]), any_newline=any_newline))
    assert b"".join(line.data for line in lines) == data.removeprefix(b"\xef\xbb\xbf")
    ends = b"\r\n" if any_newline else b"\n"
    assert not any(
        line.data.rstrip(ends).strip(ends) != line.data.rstrip(ends)
        for line in lines
        if b"\n\r" not in line.data
    )
    assert [line.number for line in lines] == list(range(1, len(lines) + 1))


def test_a_line_over_the_limit_is_marked_and_the_next_one_is_read() -> None:
    lines = list(read_lines(iter([b"ok\n", b"x" * 40, b"x" * 80, b"x\nnext\n"]), limit_bytes=100))
    assert [(line.number, line.offset, line.too_long) for line in lines] == [
        (1, 0, False),
        (2, 3, True),
        (3, 125, False),
    ]
    assert lines[1].data == b"x" * 40


def test_a_fault_in_a_line_gives_its_piece_and_its_place() -> None:
    def blocks() -> Iterator[bytes]:
        yield b"one\ntw"
        raise DamagedFile("torn")

    found: list[Line] = []
    with pytest.raises(DamagedFile) as caught:
        found += read_lines(blocks())
    lines = read_lines(blocks())
    assert next(lines).data == b"one\n"
    assert next(lines).whole is False
    assert (caught.value.line, caught.value.offset) == (2, 4)


@pytest.mark.parametrize("text", ["0\x1f", "a\x01b", "\x1f" * 30, "\x04\x04\x04", "Ж\x02"])
def test_a_control_character_makes_no_wide_encoding(text: str) -> None:
    for start in ("id,text\r\n0,", ""):
        assert wide_encoding(f"{start}{text}\r\n".encode()) is None


@pytest.mark.parametrize(
    "text",
    [
        "Привет, это письмо из дома.",
        "γειά σου κόσμε και φίλοι",
        "こんにちは おげんき ですか",
    ],
)
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_alphabets_in_wide_encodings_are_seen(tmp_path: Path, text: str, encoding: str) -> None:
    documents, (reject,) = read(put(tmp_path / "a.txt", text.encode(encoding)))
    assert not documents
    assert encoding.upper().replace("-LE", "LE").replace("-BE", "BE") in reject.reason


@pytest.mark.parametrize("ending", [".jsonl", ".json", ".csv", ".tsv", ".txt"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"])
def test_wide_encodings_are_refused_with_a_remedy(tmp_path: Path, ending: str, encoding: str) -> None:
    path = put(tmp_path / f"a{ending}", '{"id": "a", "text": "é"}\n'.encode(encoding))
    documents, rejects = read(path)
    assert documents == []
    assert len(rejects) == 1
    assert encoding.upper().replace("-", "")[:5] in rejects[0].reason.replace("-", "")
    assert "iconv -f UTF-" in rejects[0].reason
    assert rejects[0].origin.offset == 0


@pytest.mark.parametrize(
    ("text", "encoding", "words"),
    [
        ("Señor Álvarez está aquí, así", "latin-1", "Latin-1 or Windows-1252"),
        ("it’s a dog’s “life” here", "cp1252", "Latin-1 or Windows-1252"),
        ("日本語の文章はここにあります", "shift_jis", "Shift-JIS"),
        ("Привет, мир и все остальные", "cp1251", "an older encoding"),
    ],
)
def test_the_guess_names_the_encoding_and_the_byte(
    tmp_path: Path, text: str, encoding: str, words: str
) -> None:
    path = put(tmp_path / "it's.txt", b"abc\n" + text.encode(encoding))
    documents, rejects = read(path)
    assert documents == []
    place = next(at for at, byte in enumerate(path.read_bytes()) if byte >= 0x80)
    assert f"byte {place} is" in rejects[0].reason
    assert words in rejects[0].reason
    assert rejects[0].origin.line == 2
    assert rejects[0].origin.offset == place
    assert "iconv -f" in rejects[0].reason


def test_damaged_utf8_is_called_that(tmp_path: Path) -> None:
    path = put(tmp_path / "a.txt", "größer schöner weiter älter".encode() + b"\xff")
    assert "UTF-8 with damaged bytes" in read(path)[1][0].reason

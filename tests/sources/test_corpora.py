"""The messy corpus, where it lies beside the checkout: each of its files ends in the documents and rejects
written here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from pipeline.records import Document, Origin, Reject
from tests.sources.reading import read

CORPORA = Path(__file__).parents[3] / "shared" / "corpora"
MESSY = CORPORA / "messy"
pytestmark = pytest.mark.skipif(not MESSY.is_dir(), reason="there is no shared/corpora beside this checkout")


class Expected(NamedTuple):
    documents: int
    rejects: int
    reason: str = ""  # in the first reject
    settings: Mapping[str, Any] = MappingProxyType({})


def origins(documents: list[Document], rejects: list[Reject]) -> list[Origin]:
    return [document.origin for document in documents] + [reject.origin for reject in rejects]


def by(identity: str, text: str, **further: Any) -> dict[str, Any]:
    return {"id_field": identity, "text_field": text, **further}


FILES = {
    "text/blns.txt": Expected(1, 0),
    "text/blns_derived.jsonl": Expected(515, 0),
    "control_tokens/qwen_tokenization_note.md": Expected(1, 0),
    "control_tokens/qwen_tokenization_note_ja.md": Expected(1, 0),
    "control_tokens/mlx_lora.md": Expected(1, 0),
    "control_tokens/llm_plugin_utilities.md": Expected(1, 0),
    "json/utf8_bom.json": Expected(3, 0, "", by("id", "name", records_field="users")),
    "json/missing_field.ndjson": Expected(3, 2, "'name' is missing", by("id", "name")),
    "json/mixed_types.ndjson": Expected(3, 2, "'name' is null", by("id", "name")),
    "json/unterminated_quote.ndjson": Expected(4, 1, "not valid JSON", by("id", "name")),
    "json/non_object_member.ndjson": Expected(0, 1, "'id' is missing"),
    "json/crlf.ndjson.gz": Expected(5, 0, "", by("id", "name")),
    "json/empty.ndjson": Expected(0, 0),
    "json/whitespace_only.json": Expected(0, 1, "holds no JSON value"),
    "json/amazon_cellphones.ndjson": Expected(0, 793, "the record is a list"),
    "json/jts_embedded_nul.json": Expected(0, 1, "not valid JSON"),
    "json/jts_utf16le_bom.json": Expected(0, 1, "UTF-16LE"),
    "json/jts_latin1.json": Expected(0, 1, "byte 2 is 0xe9; it looks like Latin-1"),
    "json/jts_raw_newline_in_string.json": Expected(0, 1, "not valid JSON"),
    "json/jts_nan.json": Expected(0, 1, "the record is a number"),
    "json/jts_escaped_nul.json": Expected(0, 1, "the record is a string"),
    "csv/nul_byte.csv": Expected(1, 0, "", by("col1", "col2")),
    "csv/latin1_crlf.csv": Expected(0, 12, "byte 13 is 0xe9; it looks like Latin-1", by("name", "age")),
    "csv/shift_jis.csv": Expected(0, 1, "byte 0 is 0x96; it looks like Shift-JIS"),
    "csv/utf16le_bom.csv": Expected(0, 1, "UTF-16LE", by("name", "age")),
    "csv/utf8_bom_crlf.csv": Expected(2, 0, "", by("id", "name")),
    "csv/invalid_utf8_row.csv": Expected(0, 1, "'valid' more than once", by("valid", "valid")),
    "csv/mixed_newlines.csv": Expected(2, 0, "", by("10", "hello")),
    "csv/unescaped_quotes_newline.csv": Expected(0, 1, "no column 'id'"),
    "csv/emoji_tweet_multiline.csv": Expected(1, 1, "has 2 cells and the header 1", by("content", "content")),
    "csv/line_too_long.csv.gz": Expected(0, 1, "no column 'id'"),
    "csv/nfc_normalization_head.csv": Expected(0, 1, "no column 'id'"),
    "csv/json_lines_in_csv.csv": Expected(0, 1, "no column 'id'"),
    "csv/newline_in_cell.csv": Expected(3, 0, "", by("b", "a")),
    "csv/large_cells_crlf.csv": Expected(19, 0, "", by("status", "Description")),
    "parquet/papers_nested.parquet": Expected(175, 5, "'title' is null", by("id", "title")),
    "parquet/nul_in_string.parquet": Expected(3, 0, "", by("i", "v")),
    "parquet/empty_and_emoji_column_names.parquet": Expected(3, 0, "", by("önë", "")),
    "parquet/empty_datapage.parquet": Expected(0, 1, "'value' is null", by("value", "value")),
    "parquet/list_of_strings.parquet": Expected(0, 3, "is a list", by("utf8_list", "utf8_list")),
    "parquet/bad_levels_ARROW-GH-41321.parquet": Expected(
        2, 1, "rows 1 to 3 of the file cannot be read", by("int64", "string")
    ),
}


def test_the_table_names_every_file() -> None:
    listed = json.loads((MESSY / "manifest.json").read_text(encoding="utf-8"))
    assert sorted(FILES) == sorted(entry["file"] for entry in listed)


@pytest.mark.parametrize("name", FILES)
def test_each_file_ends_in_documents_or_rejects(name: str) -> None:
    expected = FILES[name]
    documents, rejects = read(MESSY / name, **expected.settings)
    assert (len(documents), len(rejects)) == (expected.documents, expected.rejects)
    if rejects:
        assert expected.reason in rejects[0].reason
    assert all(origin.line >= 1 for origin in origins(documents, rejects))
    for document in documents:
        (document.id + document.text).encode()


def test_the_whole_folder_in_one_go() -> None:
    documents, rejects = read([str(MESSY), str(MESSY / "text/*.txt"), str(MESSY / "*/*.md")])
    files = {Path(origin.file).relative_to(MESSY).as_posix() for origin in origins(documents, rejects)}
    assert files >= set(FILES) - {"json/empty.ndjson"}


def test_texts_are_exact() -> None:
    documents, _ = read(MESSY / "text/blns.txt")
    assert documents[0].text.encode() == (MESSY / "text/blns.txt").read_bytes()
    lines = (MESSY / "text/blns_derived.jsonl").read_bytes().removesuffix(b"\n").split(b"\n")
    assert [document.text for document in read(MESSY / "text/blns_derived.jsonl")[0]] == [
        json.loads(line)["text"] for line in lines
    ]


@pytest.mark.parametrize("name", sorted(path.parent.name for path in CORPORA.glob("*/dev.jsonl")))
def test_the_clean_corpora_are_read_whole(name: str) -> None:
    path = CORPORA / name / "dev.jsonl"
    documents, rejects = read(path)
    assert rejects == []
    assert len(documents) == path.read_bytes().count(b"\n")

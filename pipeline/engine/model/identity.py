"""What makes a model this model, told without loading it: enters every fingerprint.

A snapshot of the Hub is named by its commit, the packaged model by the digest of its file, and both, as every
local folder, by their weights where these are here. Weights are sampled: name, size and header of every
safetensors file (all tensor names, shapes and types) and 4 KiB from the middle of every tensor. That takes
well under a second where reading everything would take minutes, and notices any training, merging or
requantizing, which touch whole tensors. It does not notice a few bytes changed by hand elsewhere. Folder
names do not count: a moved model stays the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.config import ModelConfig
from pipeline.engine.model.demo_model import DEMO_MODEL, find_gguf, gguf_digest
from pipeline.engine.model.location import Location, locate, weight_files
from pipeline.errors import ConfigError
from pipeline.records import digest

_SAMPLE_BYTES = 4096
_MAX_HEADER_BYTES = 100_000_000  # as safetensors itself has it
# What tools write down about themselves; changes nothing.
_NOISE = frozenset(
    {
        "transformers_version",
        "_name_or_path",
        "name_or_path",
        "is_local",
        "local_files_only",
        "tokenizer_file",
    }
)
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.json",
)
_TOKENIZER_RAW_FILES = ("tokenizer.model", "vocab.txt", "merges.txt", "chat_template.jinja")


def weights_identity(config: ModelConfig, location: Location | None = None) -> dict[str, str]:
    """Identity of the weights, as plain values. Raises ConfigError."""
    place = location or locate(config)
    if place.packaged:
        return {"model": DEMO_MODEL, "gguf": gguf_digest(find_gguf())}
    code = {"code": _code_digest(place.folder)} if config.trust_remote_code else {}
    if place.repository is not None and place.commit is not None:
        return {"repository": place.repository, "commit": place.commit, **code}
    return digest_of_files(place) | code


def digest_of_files(place: Location) -> dict[str, str]:
    """The weights by what lies in their folder, as plain values; nothing where they are still to be fetched.
    Raises ConfigError.
    """
    files = weight_files(place)
    if not all(file.is_file() for file in files):
        return {}
    settings = [
        f"{name}:{_canonical(place.json(name))}" for name in ("config.json", "generation_config.json")
    ]
    return {"weights": digest(*settings, *(part for file in files for part in _file_parts(file)))}


def tokenizer_identity(location: Location) -> str:
    """Digest of the tokenizer's files: vocabulary, added and special tokens, chat templates; not of how they
    are laid out as JSON.
    """
    parts = [f"{name}:{_canonical(content)}" for name in _TOKENIZER_FILES if (content := location.json(name))]
    raw = [location.folder / name for name in _TOKENIZER_RAW_FILES]
    raw += sorted((location.folder / "additional_chat_templates").glob("*.jinja"))
    return digest(
        *parts, *(part for path in raw if path.is_file() for part in (path.name, path.read_bytes()))
    )


def _canonical(value: Mapping[str, Any]) -> str:
    return json.dumps({key: item for key, item in value.items() if key not in _NOISE}, sort_keys=True)


def _code_digest(folder: Path) -> str:
    files = sorted(folder.glob("**/*.py"))
    return digest(
        *(part for path in files for part in (path.relative_to(folder).as_posix(), path.read_bytes()))
    )


def _file_parts(path: Path) -> Iterator[bytes]:
    """Name, size, header and samples of one safetensors file (its format: 8 bytes of header length, the
    header as JSON, the tensors).
    """
    try:
        total = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > min(_MAX_HEADER_BYTES, total):
                raise ConfigError(
                    f"{path} is damaged: it is no safetensors file, or cut short; fetch it again"
                )
            header = file.read(length)
            yield from (path.name.encode(), str(total).encode(), header)
            for begin, end in _tensor_ranges(header):
                file.seek(8 + length + max(begin, (begin + end - _SAMPLE_BYTES) // 2))
                yield file.read(min(_SAMPLE_BYTES, end - begin))
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is damaged: its header cannot be read ({error}); fetch it again") from None


def _tensor_ranges(header: bytes) -> list[tuple[int, int]]:
    """(begin, end) of every tensor, in bytes after the header, in their order in the file."""
    entries = json.loads(header)
    entries.pop("__metadata__", None)
    return sorted(
        (int(entry["data_offsets"][0]), int(entry["data_offsets"][1])) for entry in entries.values()
    )

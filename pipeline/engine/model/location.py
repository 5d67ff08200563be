"""Where a model's files are: a Hub id, a local folder or the packaged model, always turned into a local
folder of files.

Everything after this works on local folders, so what is planned, identified and loaded is one and the same
snapshot. Only safetensors are ever fetched. Hub tokens are found by huggingface_hub's own rules (HF_TOKEN, or
the stored login).
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config import ModelConfig
from pipeline.engine.model.demo_model import DEMO_MODEL, demo_model
from pipeline.engine.model.library_logging import quiet_libraries
from pipeline.errors import ConfigError

_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"
# Configuration, tokenizer and chat template in all their forms; no weights.
_SMALL_FILES = ("*.json", "*.jinja", "tokenizer*", "*.model", "*.txt", "*.tiktoken")


@dataclass(frozen=True, slots=True)
class Location:
    """A model's local folder. ``repository`` and ``commit`` are set for a snapshot of the Hub, ``packaged``
    for the demo model.
    """

    folder: Path
    repository: str | None = None
    commit: str | None = None
    packaged: bool = False

    def json(self, name: str) -> dict[str, Any]:
        """The object in a JSON file of the folder; empty where there is no such file. Raises ConfigError when
        it cannot be read.
        """
        path = self.folder / name
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot read {path}: {error}") from None
        return value if isinstance(value, dict) else {}


def locate(config: ModelConfig, say: Callable[[str], None] = lambda _: None) -> Location:
    """Folder with the configuration and tokenizer of ``config.id``; weights of a Hub model are not fetched
    yet. Raises ConfigError.
    """
    if config.id == DEMO_MODEL:
        return Location(demo_model(say), packaged=True)
    path = Path(config.id)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ConfigError(
                f"model.id {config.id} is a folder without config.json; name the folder that holds a "
                f"model's files"
            )
        return Location(path)
    if path.is_file():
        raise ConfigError(
            f"model.id {config.id} is a file; name the folder that holds config.json and safetensors files"
        )
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", config.id) or config.id.startswith("."):
        raise ConfigError(
            f"model.id {config.id} is neither an existing folder nor a Hub id of the form organization/name"
        )
    patterns = (*_SMALL_FILES, "*.py") if config.trust_remote_code else _SMALL_FILES
    folder = _snapshot(config.id, config.revision, patterns)
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"the Hub repository {config.id} has no config.json, so it is not a model that transformers "
            f"can load"
        )
    return Location(folder, config.id, folder.name)


def weight_files(location: Location) -> list[Path]:
    """The safetensors files of the model, in the order of their names; for a Hub snapshot they may still have
    to be fetched.

    Raises ConfigError where there are none: files of other formats can run code when they are opened.
    """
    folder = location.folder
    explicit = location.json("config.json").get("transformers_weights")
    index = _INDEX if explicit is None else str(explicit)
    names = (
        {str(name) for name in location.json(index).get("weight_map", {}).values()}
        if index.endswith(".json")
        else {index}
    )
    if not names and (location.repository is not None or (folder / _SINGLE).is_file()):
        names = {_SINGLE}
    outside = [name for name in names if Path(name).is_absolute() or ".." in Path(name).parts]
    if outside:
        raise ConfigError(f"{folder / index} names a weight file outside of its folder: {outside[0]}")
    missing = sorted(name for name in names if not (folder / name).is_file())
    if location.repository is None and (missing or not names):
        what = f"the weight file {missing[0]} is missing" if missing else "there is no safetensors file"
        raise ConfigError(
            f"model.id {folder}: {what}; other formats (.bin, .pt) are not opened, because opening them "
            f"can run code"
        )
    return [folder / name for name in sorted(names)]


def fetch_weights(location: Location, say: Callable[[str], None]) -> list[Path]:
    """The safetensors files, downloaded first where they are not here yet. Raises ConfigError."""
    files = weight_files(location)
    missing = [file.relative_to(location.folder).as_posix() for file in files if not file.is_file()]
    if location.repository is not None and missing:
        say(
            f"downloading {len(missing)} weight file{'s' if len(missing) > 1 else ''} of "
            f"{location.repository}"
        )
        _snapshot(location.repository, location.commit, tuple(missing))
        if not all(file.is_file() for file in files):
            raise ConfigError(
                f"the Hub repository {location.repository} offers no safetensors weights "
                f"({', '.join(missing)}), or they are not "
                "in the local cache and the Hub cannot be reached; other formats (.bin) are not opened, "
                "because opening them can run code"
            )
    return files


@functools.cache
def _snapshot(repository: str, revision: str | None, patterns: Sequence[str]) -> Path:
    """Folder of the snapshot with at least the files that match. The Hub's errors become sentences."""
    from huggingface_hub import errors, snapshot_download

    quiet_libraries()
    at = f" at revision {revision}" if revision else ""
    try:
        return Path(snapshot_download(repository, revision=revision, allow_patterns=list(patterns)))
    except errors.GatedRepoError:
        reason = (
            f"is gated: accept its conditions on its page, then log in or set HF_TOKEN; while "
            f"HF_TOKEN is {_token_state()}"
        )
    except errors.RepositoryNotFoundError:
        reason = f"does not exist, or is private and HF_TOKEN is {_token_state()}"
    except errors.RevisionNotFoundError:
        reason = "does not exist: check model.revision"
    except errors.LocalEntryNotFoundError:
        offline = "HF_HUB_OFFLINE is set" if _offline() else "the Hub cannot be reached"
        reason = (
            f"is not in the local cache and {offline}; fetch it once with a connection, or name a "
            f"local folder"
        )
    except (errors.HFValidationError, OSError) as error:
        reason = f"could not be fetched: {' '.join(str(error).split())}"
    raise ConfigError(f"model.id {repository}{at} {reason}")


def _token_state() -> str:
    from huggingface_hub import get_token

    return "set, but has no access" if get_token() else "not set"


def _offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)

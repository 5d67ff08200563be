"""A ledger is read where nothing can be written: a folder of another user, a read-only mount, a finished
night on a shared disk.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.stores.ledger.ledger import Ledger
from tests.stores.ledger.ledgers import begun, document, documents

ROOT = Path(__file__).parents[3]
READ = """
import os, sys
from pathlib import Path
from pipeline.stores.ledger.ledger import Ledger
path = Path(sys.argv[1])
assert not os.access(path.parent, os.W_OK), "the folder can be written to: this test would show nothing"
with Ledger.open(path, write=False) as ledger:
    attempts = [ledger.result("topic", row.input.document_key)["attempts"] for row in ledger.rows()]
    print(sum(attempts), len(attempts))
"""
MOUNTED = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
Reader = Callable[[Path], str]


@pytest.fixture
def read_without_writing(tmp_path: Path) -> Reader:
    """Reads in another process to which the folder is read-only. Permissions do not bind root, a read-only
    mount of its own does.
    """
    root = os.geteuid() == 0
    if root and (
        not shutil.which("unshare")
        or subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("root here may not make a read-only mount of its own")

    def read(path: Path) -> str:
        command = [sys.executable, "-c", READ, str(path)]
        if root:
            command = ["unshare", "-m", "sh", "-c", MOUNTED, str(path.parent), *command]
        path.parent.chmod(0o555)
        try:
            done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
        finally:
            path.parent.chmod(0o755)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return read


@pytest.mark.parametrize("moment", ["while it is written", "after it was closed"])
def test_a_folder_that_cannot_be_written_to_is_read(
    tmp_path: Path, read_without_writing: Reader, moment: str
) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = Ledger.open(path, write=True)
    run = begun(ledger, documents(3))
    ledger.mark(run, [("topic", documents(1)[0].key)])
    if moment == "after it was closed":
        ledger.close()
        assert not path.with_name("ledger.sqlite-wal").exists()
    assert read_without_writing(path) == "1 3"
    ledger.close()


def test_what_a_killed_writer_committed_is_read(tmp_path: Path, read_without_writing: Reader) -> None:
    path = tmp_path / "ledger.sqlite"
    write = (
        "import os, sys; from pathlib import Path; from pipeline.stores.ledger.ledger import Ledger; from "
        "tests.stores.ledger.ledgers import *\n"
        "ledger = Ledger.open(Path(sys.argv[1]), write=True); run = begun(ledger, documents(3))\n"
        "ledger.mark(run, [('topic', documents(1)[0].key)]); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", write, str(path)], cwd=ROOT, check=False).returncode == -9
    assert path.with_name("ledger.sqlite-wal").stat().st_size > 0
    assert read_without_writing(path) == "1 3"


def test_lone_surrogates_in_ids_are_entered_and_found_again(tmp_path: Path) -> None:
    rows = [document("a\udcffb", "text \ud800"), document("plain", line=2)]
    with Ledger.open(tmp_path / "ledger.sqlite", write=True) as ledger:
        run = begun(ledger, rows)
        begun(ledger, rows)
        assert [row.input.id for row in ledger.rows()] == ["a\\udcffb", "plain"]
        assert [row.document_key for row in ledger.documents("a\udcffb")] == [rows[0].key]
        assert ledger.status().duplicates == 0
        assert set(ledger.pending("topic", [row.key for row in rows])) == {row.key for row in rows}
        assert run == 1

"""Whole runs for tests: a configuration over generated documents, the real command line in a real process,
and its export.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.programs import Program, python_path

SCRIPTED = "pipeline.testing.scripted_backend:ScriptedBackend"
SENTENCES = (
    "The ferry {} left the northern harbour at six in the morning.",
    "Its {} passengers waited for the fog to lift.",
    "The board met {} times and decided nothing.",
    "On the {}th day the ice broke.",
    "Nobody had counted the {} crates before.",
)
TASKS: list[dict[str, Any]] = [
    {"name": "topic", "kind": "label", "instructions": "Which?", "labels": ["world", "sports", "business"]},
    {"name": "summary", "kind": "summarize", "instructions": "Sum up.", "max_output_tokens": 60},
]


def documents(count: int, seed: int = 7, longest: int = 40) -> list[dict[str, Any]]:
    """Documents of one to ``longest`` sentences."""
    chance = random.Random(seed)
    return [
        {
            "id": f"d{number:04}",
            "text": " ".join(
                chance.choice(SENTENCES).format(chance.randint(2, 99))
                for _ in range(chance.randint(1, longest))
            ),
        }
        for number in range(count)
    ]


@dataclass
class ANight:
    """One run directory with its configuration and script. ``run`` starts the real command; everything else
    reads what it left.
    """

    folder: Path
    rows: list[dict[str, Any]]
    tasks: list[dict[str, Any]] = field(default_factory=lambda: TASKS)
    script: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.write_source(self.rows)
        raw: dict[str, Any] = {
            "model": {"id": "scripted", "quantization": "none", "context_tokens": 600},
            "source": {"path": str(self.source)},
            "tasks": self.tasks,
            "engine": {"backend": self.backend, "batch_rows": 4},
            "run": {"directory": str(self.directory)},
        }
        for key, value in self.extra.items():
            raw[key] = {**raw.get(key, {}), **value}
        self.config.write_text(yaml.safe_dump(raw), encoding="utf-8")

    @property
    def backend(self) -> str:
        """The scripted model, unless ``extra`` names a real one."""
        return "auto" if self.extra.get("model", {}).get("id") else SCRIPTED

    @property
    def source(self) -> Path:
        return self.folder / "in.jsonl"

    @property
    def config(self) -> Path:
        return self.folder / "config.yaml"

    @property
    def directory(self) -> Path:
        return self.folder / "run"

    def write_source(self, rows: list[dict[str, Any]]) -> None:
        self.source.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": python_path(os.environ),
            "OVERNIGHT_SCRIPT": json.dumps(self.script),
            "HF_HUB_OFFLINE": "1",
        }

    def start(self, *arguments: str, cwd: Path | None = None) -> subprocess.Popen[str]:
        return Program(
            [sys.executable, "-P", "-m", "pipeline.cli.main", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
            start_new_session=True,
            cwd=cwd,
        )

    def command(
        self, *arguments: str, timeout: float = 240, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments, cwd=cwd)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()  # what is left open would be another test's warning
            raise
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def run(
        self, *arguments: str, timeout: float = 240, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        return self.command("run", str(self.config), *arguments, timeout=timeout, cwd=cwd)

    def run_and_kill(self, after_seconds: float, number: int = signal.SIGKILL) -> int:
        """Start the run, send it a signal, and return its exit code (0 when it was done before)."""
        process = self.start("run", str(self.config))
        try:
            process.wait(after_seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(number)
        process.communicate(timeout=60)
        return int(process.returncode)

    def loads(self) -> int:
        """How often a worker was told to load the model; a worker may be there before, importing its
        libraries.
        """
        log = self.directory / "overnight.log"
        return log.read_text(encoding="utf-8").count("loading the model") if log.exists() else 0

    def export(self) -> list[dict[str, Any]]:
        output = self.folder / "out.jsonl"
        done = self.command("export", str(self.directory), "--output", str(output))
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]

    def status(self) -> dict[str, Any]:
        done = self.command("status", str(self.directory), "--json")
        assert done.returncode == 0, done.stderr
        counts: dict[str, Any] = json.loads(done.stdout)
        return counts


def no_process_left(directory: Path, seconds: float = 10) -> bool:
    """Whether every process that has a file of ``directory`` open is gone within ``seconds``."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pids = (place.name for place in Path("/proc").iterdir() if place.name.isdigit())
        mine = [pid for pid in pids if int(pid) != os.getpid() and str(directory) in _open_files(pid)]
        if not mine:
            return True
        time.sleep(0.2)
    return False


def _open_files(pid: str) -> str:
    try:
        return " ".join(str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return ""

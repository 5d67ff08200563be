"""Every error of the product, in one tree.

    OvernightError
    ├── Terminal                    trying again changes nothing
    │   ├── UsageError              exit 2: wrong configuration, wrong arguments, refused by a guard
    │   │   ├── ConfigError         a key, a value or a combination of them
    │   │   │   └── CannotPlan      a kind of model or layer whose memory is not known here
    │   │   ├── SourceError         an input that cannot be read at all
    │   │   ├── JobChanged          a task differs from the one this run directory holds
    │   │   └── DoesNotFit          the model does not fit this machine as configured
    │   ├── AlreadyRunning          exit 75: another process holds the run directory
    │   ├── LedgerError             exit 1: the ledger contradicts itself or is not ours
    │   └── DocumentFailed          one document cannot be answered; recorded as its Failure
    └── Retryable                   the same work may succeed later, or smaller
        ├── OutOfMemory             halve the batch, then alone, then another placement
        ├── WorkerDied              restart the worker; the documents in flight are suspects
        └── StoppedEarly            exit 75: signal, deadline, disk full; the same command goes on
            └── DeviceLost          a graphics card vanished, or fails whatever it is asked

Messages are sentences: what, which document or key, the value, the limit, and the remedy.
"""

from __future__ import annotations

EXIT_DONE = 0
EXIT_FAULT = 1
EXIT_USAGE = 2
EXIT_SOME_FAILED = 3
EXIT_STOPPED = 75


class OvernightError(Exception):
    """Base of everything raised on purpose. ``exit_code`` is what the command line ends with."""

    exit_code = EXIT_FAULT


class Terminal(OvernightError):
    """Trying the same again changes nothing."""


class Retryable(OvernightError):
    """The same work may succeed later, or in a smaller piece."""


class UsageError(Terminal):
    """The user can mend it: a wrong configuration, argument or place."""

    exit_code = EXIT_USAGE


class ConfigError(UsageError):
    """A key, a value, or a combination of values in the configuration."""


class CannotPlan(ConfigError):
    """A model, or a kind of layer, whose memory the planner does not know; it says so rather than guess."""


class SourceError(UsageError):
    """An input that cannot be read at all (missing, wrong encoding, wrong format)."""


class JobChanged(UsageError):
    """A task's identity differs from the one the run directory holds; the message is the diff."""


class DoesNotFit(UsageError):
    """The model, as configured, does not fit this machine."""


class AlreadyRunning(Terminal):
    """Another living process holds the lock of the run directory."""

    exit_code = EXIT_STOPPED


class LedgerError(Terminal):
    """The ledger contradicts itself, or was not written by a version we can read."""


class DocumentFailed(Terminal):
    """One document cannot be answered. ``kind`` is the word recorded, e.g. ``too_long`` or ``unparsed``."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class OutOfMemory(Retryable):
    """The device or the host ran out of memory during a batch."""


class WorkerDied(Retryable):
    """The process that holds the model ended or stopped answering."""


class StoppedEarly(Retryable):
    """A signal, the deadline or a full disk; what was recorded stays, the same command goes on."""

    exit_code = EXIT_STOPPED


class DeviceLost(StoppedEarly):
    """A graphics card that the run was planned for has vanished, or fails whatever it is asked."""

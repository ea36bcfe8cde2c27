"""The messages between a broker and its clients: lines of JSON, after mutual authentication.

The queue's file contains the broker's id. So exactly those who can read the file can talk to its
broker: each side sends a digest of the id, the broker first. A client notices a different server on
the broker's old port before it has sent anything.
"""

from __future__ import annotations

import hashlib
import json
import socket
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

from lockkit.errors import clipped
from lockkit.recipes.errors import ForeignBroker, NoBroker
from lockkit.recipes.queue.file import SHOWN, Broker, count_of, job_of, text_of
from lockkit.recipes.queue.group import Outcome
from lockkit.recipes.queue.operations import (
    Beat,
    Claim,
    Claimed,
    Complete,
    Done,
    Empty,
    Forgotten,
    Operation,
    Push,
    Refused,
)
from lockkit.recipes.queue.write import NotDone, Unsure

LINE_BYTES_MAX = 1_000_000
GREETING_BYTES_MAX = 1_000
GREETING_S = 5.0
ANSWER_S = 60.0
"""Longer than a broker tries to write a batch."""
_OPERATIONS = {each.__name__: each for each in (Push, Claim, Beat, Complete)}
_PLAIN = {each.__name__: each for each in (Done, Empty, Forgotten)}


# --- lines ----------------------------------------------------------------------------------------


def to_line(fields: dict[str, Any]) -> bytes:
    """Encoded as UTF-8: in ASCII the longest payload could exceed `LINE_BYTES_MAX`."""
    text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass") + b"\n"


def read_line(file: BinaryIO, most: int = LINE_BYTES_MAX) -> dict[str, Any]:
    """One line's fields; `EOFError` at the end, `ValueError` for an invalid line."""
    line = file.readline(most)
    if not line:
        raise EOFError
    fields = json.loads(line) if line.endswith(b"\n") else None
    if not isinstance(fields, dict):
        raise ValueError(f"not a line of JSON: {clipped(repr(line), SHOWN)}")
    return fields


def operation_line(operation: Operation) -> bytes:
    return to_line({"do": type(operation).__name__, **asdict(operation)})


def operation_of(fields: dict[str, Any]) -> Operation:
    """Raises ValueError, TypeError or KeyError."""
    kind: Any = _OPERATIONS[fields.pop("do")]
    since = fields.pop("since", None)
    counts = {"attempts"} & fields.keys()
    typed = {name: (count_of if name in counts else text_of)(fields[name]) for name in fields}
    operation: Operation = kind(**typed, since=None if since is None else count_of(since))
    return operation


def outcome_line(outcome: Outcome, number: int) -> bytes:
    """`number` is that of the last write that the broker knows, in case the client must retry."""
    fields: dict[str, Any] = {"is": type(outcome).__name__, "number": number}
    match outcome:
        case Claimed(job):
            fields["job"] = job.to_fields()
        case Refused(why) | NotDone(why) | Unsure(why):
            fields["why"] = why
    return to_line(fields)


def outcome_of(fields: dict[str, Any], since: int) -> Outcome:
    """Raises ValueError, TypeError or KeyError."""
    match fields["is"]:
        case "Claimed":
            return Claimed(job_of(fields["job"]))
        case "Refused":
            return Refused(text_of(fields["why"]))
        case "NotDone":
            return NotDone(text_of(fields["why"]))
        case "Unsure":
            return Unsure(text_of(fields["why"]), since)
        case kind:
            return _PLAIN[kind]()


# --- connections ----------------------------------------------------------------------------------


def proof(side: str, broker_id: str) -> str:
    return hashlib.sha256(f"lockkit queue {side} {broker_id}".encode()).hexdigest()


@dataclass(slots=True, eq=False, weakref_slot=True)
class BrokerConnection:
    """A client's connection to the broker, one request at a time."""

    broker: Broker
    number: int
    """The number of the last reported write: the next request is in no write up to it."""
    _socket: socket.socket
    _file: BinaryIO

    def ask(self, operation: Operation) -> Outcome:
        """The outcome; `Unsure` if the connection or the broker ended first."""
        try:
            self._socket.sendall(operation_line(operation))
            fields = read_line(self._file)
            since, self.number = self.number, count_of(fields["number"])
            return outcome_of(fields, since)
        except (OSError, EOFError, ValueError, TypeError, KeyError) as error:
            self.close()
            why = f"the broker at {self.broker.address} did not answer ({type(error).__name__})"
            return Unsure(why, self.number)

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    __del__ = close  # with the thread that used it


def connect(broker: Broker) -> BrokerConnection:
    """An authenticated connection; `NoBroker` or `ForeignBroker` names what is there instead."""
    host, _, port = broker.address.rpartition(":")
    shown = broker.address[:SHOWN]
    try:
        made = socket.create_connection((host, int(port)), GREETING_S)
    except (OSError, ValueError, OverflowError) as error:
        raise NoBroker("no broker", f"answers at {shown} ({error})") from None
    file = made.makefile("rb")
    try:
        greeting = read_line(file, GREETING_BYTES_MAX)
        if greeting.get("proof") != proof("broker", broker.id):
            raise ValueError("its proof belongs to another broker")
        number = count_of(greeting.get("number"))
        made.sendall(to_line({"proof": proof("client", broker.id)}))
        made.settimeout(ANSWER_S)
        return BrokerConnection(broker, number, made, file)
    except (OSError, EOFError, ValueError, TypeError) as error:
        file.close()
        made.close()
        if isinstance(error, OSError | EOFError):  # it ends, or is stopped
            raise NoBroker("no broker", f"answers at {shown} ({error or 'it hung up'})") from None
        raise ForeignBroker(
            f"the process at {shown}",
            f"is not the broker that queue.json names ({clipped(str(error), SHOWN)})",
            "it received no request",
        ) from None

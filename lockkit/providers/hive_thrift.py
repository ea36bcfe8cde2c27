"""The six calls of a Hive Metastore that a lock needs, and their records on the wire.

Names, field numbers and types are those of Apache Hive's hive_metastore.thrift (Apache-2.0).
Optional fields that lockkit neither reads nor sets are left out, which thrift allows.
"""

from __future__ import annotations

from typing import Any

from thrift.protocol.TBase import TBase, TExceptionBase
from thrift.Thrift import TApplicationException, TMessageType, TType

EXCLUSIVE, TABLE_LEVEL, NO_TXN = 3, 2, 6
"""Values of `LockType`, `LockLevel` and `DataOperationType`."""


def _record(name: str, fields: dict[int, tuple[str, Any]], base: type = TBase) -> Any:
    """A class with these fields: number -> name, and its type or nested record class."""
    spec: list[Any] = [None] * (max(fields, default=-1) + 1)
    for number, (field, kind) in fields.items():
        match kind:
            case type():
                spec[number] = (number, TType.STRUCT, field, [kind, None], None)
            case [of]:
                spec[number] = (number, TType.LIST, field, (TType.STRUCT, [of, None], False), None)
            case TType.STRING:
                spec[number] = (number, TType.STRING, field, "UTF8", None)
            case _:
                spec[number] = (number, kind, field, None, None)
    names = tuple(field for field, _ in fields.values())

    def init(self: Any, **values: Any) -> None:
        for each in names:
            setattr(self, each, values.pop(each, None))
        if values:
            raise TypeError(f"{name} has no {', '.join(values)}")

    made = type(name, (base,), {"__slots__": names, "__init__": init})
    made.thrift_spec = tuple(spec)  # type: ignore[attr-defined]
    return made


LockComponent = _record("LockComponent", {
    1: ("type", TType.I32), 2: ("level", TType.I32), 3: ("dbname", TType.STRING),
    4: ("tablename", TType.STRING), 6: ("operationType", TType.I32),
})  # fmt: skip
LockRequest = _record("LockRequest", {
    1: ("component", [LockComponent]), 3: ("user", TType.STRING), 4: ("hostname", TType.STRING),
    5: ("agentInfo", TType.STRING),
})  # fmt: skip
LockResponse = _record("LockResponse", {1: ("lockid", TType.I64), 2: ("state", TType.I32)})
LockId = _record("LockId", {1: ("lockid", TType.I64)})
"""CheckLockRequest, HeartbeatRequest and UnlockRequest have the same fields."""
ShowLocksRequest = _record(
    "ShowLocksRequest", {1: ("dbname", TType.STRING), 2: ("tablename", TType.STRING)}
)
ShownLock = _record("ShowLocksResponseElement", {
    1: ("lockid", TType.I64), 5: ("state", TType.I32), 8: ("lastheartbeat", TType.I64),
    10: ("user", TType.STRING), 11: ("hostname", TType.STRING), 13: ("agentInfo", TType.STRING),
    14: ("blockedByExtId", TType.I64),
})  # fmt: skip
ShowLocksResponse = _record("ShowLocksResponse", {1: ("locks", [ShownLock])})


def _error(name: str) -> Any:
    return _record(name, {1: ("message", TType.STRING)}, TExceptionBase)


NoSuchLock, NoSuchTxn = _error("NoSuchLockException"), _error("NoSuchTxnException")
TxnAborted, TxnOpen = _error("TxnAbortedException"), _error("TxnOpenException")
ConfigRefused = _error("ConfigValSecurityException")


# Per call: its arguments, the type of its answer, and its errors, numbered from 1.
_CALLS: dict[str, tuple[list[Any], Any, list[Any]]] = {
    "lock": ([LockRequest], LockResponse, [NoSuchTxn, TxnAborted]),
    "check_lock": ([LockId], LockResponse, [NoSuchTxn, TxnAborted, NoSuchLock]),
    "unlock": ([LockId], None, [NoSuchLock, TxnOpen]),
    "heartbeat": ([LockId], None, [NoSuchLock, NoSuchTxn, TxnAborted]),
    "show_locks": ([ShowLocksRequest], ShowLocksResponse, []),
    "get_config_value": ([TType.STRING, TType.STRING], TType.STRING, [ConfigRefused]),
}


def call(protocol: Any, method: str, *arguments: Any) -> Any:
    """Send one request over an open protocol and read its answer. Raises the answer's error."""
    takes, answers, errors = _CALLS[method]
    request_type = _record(
        f"{method}_args", {i: (f"a{i}", kind) for i, kind in enumerate(takes, 1)}
    )
    result_fields: dict[int, tuple[str, Any]] = {
        i: (f"o{i}", kind) for i, kind in enumerate(errors, 1)
    }
    if answers is not None:
        result_fields[0] = ("success", answers)
    protocol.writeMessageBegin(method, TMessageType.CALL, 0)
    request_type(**{f"a{i}": each for i, each in enumerate(arguments, 1)}).write(protocol)
    protocol.writeMessageEnd()
    protocol.trans.flush()
    _, kind, _ = protocol.readMessageBegin()
    answer: Any
    if kind == TMessageType.EXCEPTION:
        answer = TApplicationException()
        answer.read(protocol)
        protocol.readMessageEnd()
        raise answer
    answer = _record(f"{method}_result", result_fields)()
    answer.read(protocol)
    protocol.readMessageEnd()
    for i in range(1, len(errors) + 1):
        if (error := getattr(answer, f"o{i}")) is not None:
            raise error
    if answers is None:
        return None
    if answer.success is None:
        raise TApplicationException(
            TApplicationException.MISSING_RESULT, f"{method} was not answered"
        )
    return answer.success

"""An owner may be named like a URL with a password: nothing shows it, whole or cut."""

from __future__ import annotations

import json
import logging
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lockkit import Clock, Lock, open_lock, open_store
from lockkit.cli.main import main
from lockkit.errors import LockBusy, LockLost, LossReason, StatedError, masked
from lockkit.lab.incident.audit import parse_audit
from lockkit.lab.incident.diagnosis import Diagnosis
from lockkit.lab.incident.patterns import Pattern
from lockkit.lab.incident.service import ServiceExamination
from lockkit.lock.handle import LOCK_KEY
from lockkit.protocol.outcome import Applied, Found, IfAbsent, IfVersion
from lockkit.protocol.record import Record, encode
from lockkit.providers.filesystem import read
from lockkit.providers.hive import _owner
from lockkit.providers.holder import ServiceHolder
from lockkit.providers.zookeeper import HOLDER, _said
from lockkit.recipes.election import Election
from lockkit.recipes.election.epochs import epoch_key
from lockkit.recipes.granular.queued import _entry
from lockkit.recipes.queue import QueueError
from lockkit.recipes.queue.file import decode as queue_of
from lockkit.sinks import EventSink, listening
from lockkit.stores.secret import carries_secret

LONG = f"https://anna:{'secret-' * 100}word@ci.test/job/7"
"""So long that it is cut everywhere, before its @."""
SHORT = "https://anna:secret-word@ci.test/job/7"


@pytest.mark.parametrize(
    "url",
    [
        SHORT,
        LONG,
        "https://secret-token@ci.test/job/7",
        "https://anna%3Asecret-word@ci.test/job/7",
        "https://anna%3asecret-word@ci.test:8080/job/7",
        "https%3A%2F%2Fanna%3Asecret-word%40ci.test%2Fjob",
        "s3://AKIA1:secret/word@bucket/table",
        "abfss://anna:secret-word@account.dfs.core.windows.net/table",
        "http://h:80,http://anna:secret-word@h:81",
        "https://secret%2Ftoken@ci.test/job/7",
        "postgres://anna:secret?word@ci.test/jobs",
        "postgres://anna:secret#word@ci.test/jobs",
        "postgres%3A//anna%3Asecret%40ci.test/jobs",
        "postgres:\\/\\/anna:secret@ci.test",
        "https://ci.test/?next=https%3A%2F%2Fanna%3Asecret%40ci.test",
        "https://anna:123/secret@ci.test/job",
        "https%253A%252F%252Fanna%253Asecret%2540ci.test",
        "https://a.test/x?sv=1&sig=secret&x",
        "https%3A%2F%2Fa.test%2Fx%3Fsig%3Dsecret",
        "https://a.test/x?X-Amz-Signature=secret&x",
        "https://a.test/x?X-Amz-Security-Token=secret",
        "AccountName=a;AccountKey=secret==;x",
        "zookeeper://h:1/a/b?auth=digest:u:secret",
        "https%253A%252F%252Fa.test%252Fx%253Fsig%253Dsecret",
        "Authorization: Bearer secret",
        "Authorization: SharedKey account:secret=",
        "authorization = Token  secret",
        "password =secret",
        "password= secret",
        "token=...secret",
        'pwd=secret {"api_key": "secret"}',
        "authorization: secret",
        "https://ci.test/?%70assword=secret&x",
        "%2570assword%253Dsecret",
        "password='a secret'",
        'passwd = "a secret"',
        "pass=secret",
        "password  = secret",
        "password: secret",
        '"access_key": "a secret"',
        "anna:secret@ci.test",
        "url=anna:a(secret,/=@ci.test:5432/db",
        "(anna:secret@10.0.0.1)",
        '{"at": "anna:secret@host"}',
        "password:secret",
        "token:secret",
        "password : secret",
        "credential: secret-1",
        "x-amz-security-token: secret-1",
        "x-amz-server-side-encryption-customer-key:secret",
        r"{\"password\": \"a secret\"}",
        '{"password"   :   "a \\"very\\" secret"}',
        '{"private_key": "-----BEGIN\\nsecret"}',
        "{b'password': b'a secret'}",
        "{'Authorization': 'Bearer secret', 'Host': 'h'}",
        "('Authorization', 'Basic secret')",
        "Bearer eyJhbGciOiJIUzI1NiJ9.secret",
        "<SecretAccessKey>secret</SecretAccessKey>",
        f"password='{'long ' * 60}secret'",
        "https%25253A%25252F%25252Fanna%25253Asecret%252540ci.test",
        "aws --password secret",
        "--db-password  a/secret",
        "password\tsecret",
        "password\t=\tsecret",
        "password := secret",
        "password => secret",
        "password=\nsecret",
        "password:\nsecret",
        "-----BEGIN PRIVATE KEY-----\nMIIEsecret\nsecret==\n-----END PRIVATE KEY-----",
        "-----BEGIN RSA PRIVATE KEY-----\\nMIIEsecret -----END",
        "token eyJhbGciOiJIUzI1NiJ9.secret",
        "Set-Cookie: session=secret; Path=/",
        "digest:user:secret",
        "anna:secret@db-1:5432/jobs",
        '{"key": "fs.s3a.access.key", "value": "a-secret"}',
        "Authorization: GOOG1 secret",
        "Authorization: Negotiate secret",
        "Cookie: a=b; session=secret",
        "password: |\n  secret",
        '{"password": ["secret"]}',
        "password: not-my-secret",
        "password: set!secret",
    ],
)
def test_no_form_of_a_password_in_a_url_is_shown(url: str) -> None:
    assert "secret" not in masked(f"before {url} after")
    assert masked(f"before {url} after").startswith("before ")
    assert masked(f"before {url} after").endswith((" after", "Cookie: ***"))


@pytest.mark.parametrize(
    "url",
    [
        "abfss://container@account.dfs.core.windows.net/table",
        "az://container@account.blob.core.windows.net/table",
        "http://127.0.0.1:9000/job@7",
        "https://ci.test/job/7@main",
        "zookeeper://h1:2181,h2:2181/base/anna@home",
        "wasbs://container@account.blob.core.windows.net/table",
        "http://[::1]:9000/job/anna@home",
        "s3://bucket/token=ETH/password_resets=7/part-0001.parquet",
        "http://127.0.0.1:9000?job=7@main",
        "https%3A%2F%2Fci.test%2Fjob%2F7%40main",
        "s3://bucket/anna:table@7",
        "host/17@12~boot.3",
        "http://localhost:9000/job@7",
        "http://minio.test:9000/job@7?design=1",
        "lease:1234@57",
        "container@account",
        "pass access_key=... and password=...",
        "check the credentials: run aws login",
        "s3://bucket/k%41",
        "compass=3 bypass=1, one pass: done",
        "password: was wrong",
        "The password: it is rejected; access denied (using password: YES)",
        "token: expired at 10:02; secret: not found",
        "Authorization: denied by the policy",
        "the process died with sig=9, pass=3 of 7",
        "x-amz-request-id: 4442587FB7D0A2F9",
        "https://h/t?x-amz-version-id=3HL4kqt&x-goog-generation=17",
        "owner pod:1234@node-7 at 12:34:56@host",
        "arn:aws:sts::1:assumed-role/Admin/anna@example.com may not s3:PutObject",
        "serviceAccount:lock@project.iam.gserviceaccount.com",
        "registry/image:1.2@sha256:" + "0f" * 32,
        "git@github.com:organisation/repository",
        "holder nightly:etl@host-3, spark:app-20261127@ip-10-0-0-1",
        "tokens=3 held, access_keys=12, fencing token: 17 was refused, lock_token=5",
        "continuation-token=1ueGcxLPRx1Tr NextContinuationToken=a tokenizer=bpe",
        "give --access-key and --secret-key: the one needs --secret-key too",
        "password=\nuser=anna",
    ],
)
def test_a_url_without_a_password_is_shown_in_full(url: str) -> None:
    assert masked(url) == url


NAMES = (
    "aws_secret_access_key", "AWS_SECRET_ACCESS_KEY", "access_key", "access.key", "api-key",
    "password", "passwd", "AccountKey", "SharedAccessSignature", "X-Amz-Credential",
    "GoogleAccessId", "my_token_2", "sig", "x.sig",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_a_url_must_not_contain_is_masked_in_every_text(name: str) -> None:
    assert carries_secret(f"s3://bucket/table?{name}=hidden")
    assert masked(f"before {name}=hidden after {name} = hidden&x") == (
        f"before {name}=*** after {name} = ***&x"
    )
    assert masked(f"{name}%3Dhidden") == f"{name}%3D***"


@pytest.mark.parametrize("scheme", ["az", "abfs", "abfss"])
def test_a_key_behind_an_azure_account_is_found_and_a_port_is_none(scheme: str) -> None:
    assert carries_secret(f"{scheme}://lake@acct:Secret/orders")
    assert carries_secret(f"{scheme}://lake@acct.dfs.core.windows.net:1Secret")
    for place in ("lake@acct", "lake@acct.dfs.core.windows.net:443", "lake@acct:10000", "lake"):
        assert not carries_secret(f"{scheme}://{place}/orders:a")
        assert not carries_secret(f"{scheme}://{place}")


def test_numbers_of_json_are_no_credentials() -> None:
    text = '{"tokens": 1000, "max_tokens": 5, "password_policy": {"min": 8}}'
    assert masked(text) == text


@pytest.mark.timeout(60)  # a quadratic search takes ten minutes
@pytest.mark.parametrize(
    "part",
    ["a-", "a.", "secret", "token-", "sig", "x-amz-", "a ", "%3f", "=", "%41", "-%41", "a%2541"],
)
def test_much_text_that_looks_like_names_is_masked_in_linear_time(part: str) -> None:
    text = part * (250_000 // len(part))
    assert masked(text) == text
    assert not carries_secret(text)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "part",
    ["a:", "a:@", "a:b@", "1:", "%25", "password:", "password: \n", "token: ", "token : ",
     "password=\\", "password='", 'password="', 'token":', "bearer ", "authorization: "],
)  # fmt: skip
def test_200_kilobytes_around_a_password_are_masked_in_linear_time(part: str) -> None:
    text = part * (200_000 // len(part))
    assert "secret" not in masked(f"{text}\n anna:secret@ci.test {text}")


@pytest.mark.timeout(60)  # it once took minutes, in which the process lost the locks it held
@pytest.mark.parametrize(
    "part", [":", "://", "://a:", "://a@", "%3a", "%3a%2f%2f", "%40", "az", "1"]
)
def test_an_owner_of_200_kilobytes_is_masked_while_locks_are_renewed(part: str) -> None:
    text = f"://{part * (200_000 // len(part))}"
    assert (masked(text) == text) == ("@" not in part)
    assert "secret" not in masked(f"{text}://anna:secret@ci.test")


def errors() -> list[Exception]:
    return [
        LockBusy("the lock", owner=LONG, cure="wait"),
        LockBusy("the lock", owner=SHORT, holder=SHORT, cure="wait").within("the commit"),
        LockLost("the lock", f"{SHORT} took it", "stop", reason=LossReason.TAKEN),
        StatedError("the lock", f"is held by {SHORT}"),
    ]


@pytest.mark.parametrize("error", errors(), ids=["long", "within", "lost", "stated"])
def test_an_error_shows_no_password_of_an_owner(error: Exception) -> None:
    assert "secret" not in f"{error} {error!r}"


def held_by(folder: Path, owner: str, key: str = LOCK_KEY) -> str:
    until_ms = Clock().wall_ms() + 600_000
    record = Record(owner, until_ms, epoch=1, attempt="a", ttl_ms=600_000, holder=owner)
    store = open_store(folder.as_uri())
    seen = store.get(key)
    condition = IfVersion(seen.version) if isinstance(seen, Found) else IfAbsent()
    assert isinstance(store.put(key, encode(record), condition), Applied)
    return folder.as_uri()


@pytest.mark.parametrize("owner", [SHORT, LONG], ids=["short", "long"])
def test_an_events_lane_and_fields_have_no_password_of_an_owner(
    owner: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Any] = []
    caplog.set_level(logging.DEBUG, "lockkit")
    with listening(lambda url, event: seen.append((url, event.to_json()))):
        with Lock((tmp_path / "mine").as_uri(), owner=owner) as lock:
            assert "secret" not in repr(lock)
        with open_lock(f"process://{tmp_path.name}", owner=owner) as other:
            assert "secret" not in repr(other)
        taken = Lock(held_by(tmp_path / "theirs", owner), emit=lambda kind, **of: seen.append(of))
        assert not taken.acquire(blocking=False)
    assert "waits for the lock" in caplog.text and "acquired the lock" in caplog.text
    assert "secret" not in caplog.text
    assert seen and "secret" not in str(seen)


def test_a_note_of_an_events_sink_is_masked_before_a_log_line_is_cut(
    caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "lockkit")
    EventSink("s3://lake/orders", "W1")("note", text=f"broke the lock of {LONG}")
    assert "broke the lock of https" in caplog.text or "broke the lock of ://" in caplog.text
    assert "secret" not in caplog.text


def test_a_record_shows_no_password_of_an_owner(tmp_path: Path) -> None:
    signed = "https://a.test/x?sig=secret-word"
    with closing(Lock(held_by(tmp_path, SHORT))) as lock:
        assert "epoch=1" in repr(lock.inspect()) and "secret" not in repr(lock.inspect())
    assert "secret" not in repr(Record(signed, 1, holder=SHORT))


@pytest.mark.parametrize(
    "line",
    [
        ("lock", "acquire", "s3://u:secret@b/p/terraform.tfstate", "--timeout", "1", "--", "true"),
        ("lock", "show", "s3:/u:secret@b/t"),
        ("lock", "show", "u:secret@h/x"),
        ("lock", "show", "s3://b/t", "--endpoint", "http://127.0.0.1:1;AccountKey=secret"),
        ("probe", "zookeeper://h:1/a/b?auth=digest:u:secret"),
        ("lock", "show", "s3://b/t", "--endpoint", "http://127.0.0.1:x;password=secret"),
        ("lock", "show", "s3//u:secret@b/t"),
        ("lock", "break", "s3://b/t", "--faults", "http://u:secret@h/f"),
        ("incident", "u:secret@h/f"),
        ("check", "s3:/u:secret@h/f"),
    ],
    ids=lambda line: " ".join(line)[:40],
)
def test_a_wrong_url_of_a_command_is_repeated_without_its_password(
    line: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    assert main(line) != 0
    said = capsys.readouterr()
    assert said.err and "secret" not in said.err + said.out


def test_an_election_shows_no_password_of_its_leader(tmp_path: Path) -> None:
    seen: list[Any] = []
    url = held_by(tmp_path, LONG, epoch_key(1))
    with closing(Election(url, emit=lambda kind, **of: seen.append((kind, of)))) as election:
        assert not election.campaign(acquire_timeout=0)
        assert "leads in epoch 1" in election.because()
        assert "secret" not in election.because() + repr(election)
    assert [kind for kind, _ in seen if kind == "waiting"] and "secret" not in str(seen)


def test_a_services_record_of_a_holder_is_masked_before_it_is_cut() -> None:
    assert "secret" not in _said(f"{HOLDER}{LONG}".encode())[0]
    assert "secret" not in _owner(SimpleNamespace(user=LONG, hostname="h"))
    body = json.dumps({"owner": LONG, "pid": 7, "host": "h", "attempt": "a"}).encode()
    assert "secret" not in read(body, 0).said
    fields = {"id": "a", "mode": "READ", "epoch": 1, "beat": 1, "ttlMs": 1, "holder": LONG}
    assert "secret" not in _entry(fields).holder
    line = {"ownerId": LONG, "state": "END", "timestamp": 1, "lockExpiration": 2}
    assert "secret" not in parse_audit(json.dumps(line)).events[0].who


def test_a_notebook_shows_no_password_of_a_services_holder() -> None:
    held = ServiceHolder(SHORT, "sig=secret", "never", process="password=secret", waiting=(SHORT,))
    diagnosis = Diagnosis(Pattern.HEALTHY, "held")
    seen = ServiceExamination(held, 1, None, diagnosis)
    assert "secret" not in repr(seen)
    assert "ends='never'" in repr(seen) and "overdue_s=None" in repr(held)


def test_a_damaged_queue_shows_no_password() -> None:
    fields = {"format": "lockkit-queue", "version": 1, "broker": None, "jobs": [{"id": [LONG]}]}
    with pytest.raises(QueueError) as refused:
        queue_of(json.dumps(fields).encode())
    assert "secret" not in str(refused.value)


def test_what_replaced_a_grant_is_named_without_a_password(tmp_path: Path) -> None:
    with closing(Lock(tmp_path.as_uri(), ttl_s=60)) as lock:
        assert lock.acquire(timeout=5)
        held_by(tmp_path, SHORT)
        with pytest.raises(LockLost) as lost:
            lock.release()
    assert "ci.test" in str(lost.value) and "secret" not in str(lost.value)

"""The least privilege that is written down is what a lock asks for: no more, and no fewer."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import boto3
import peer_servers
import pyarrow as pa
import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ClientError
from urllib3 import HTTPResponse

from lockkit import Lock, StoreError, open_store
from lockkit.cli.main import main
from lockkit.cli.terminal import EXIT_FAILED
from lockkit.lab.incident.examine import examine
from lockkit.lab.server import Emulator
from lockkit.lab.server.policy import read_policy
from lockkit.lock.creation_check import TABLE_KEY
from lockkit.lock.handle import LOCK_KEY
from lockkit.protocol.outcome import IfAbsent
from lockkit.providers.azure_lease import AzureBlobLease
from lockkit.providers.dynamodb import COUNTER, DynamoDBLock
from lockkit.table import Table

POLICIES = Path(__file__).parents[1] / "datasets" / "policies"


def policy(name: str) -> Any:
    return json.loads((POLICIES / f"{name}.json").read_text())


def actions(said: Any) -> set[str]:
    """What an IAM document allows."""
    listed = [each["Action"] for each in said["Statement"] if each["Effect"] == "Allow"]
    return {a for each in listed for a in ([each] if isinstance(each, str) else each)}


def lives(lock: Any, other: Any) -> None:
    """All that two locks come to: taken, found busy, renewed, released, taken over, asked about."""
    assert lock.acquire(timeout=10)
    assert not other.acquire(timeout=0)
    lock.renew()
    assert other.locked()
    lock.release()
    assert other.acquire(timeout=10)
    other.release()


@pytest.mark.xdist_group("dynamodb")
def test_dynamodbs_policy_names_the_operations_that_a_lock_sends_and_their_keys(
    dynamodb: Any,
) -> None:
    said = policy("dynamodb")
    sent: set[str] = set()
    table = "policies"
    locks = [DynamoDBLock(table, "orders", endpoint_url=dynamodb.endpoint) for _ in range(2)]
    for each in locks:
        each._table._client.meta.events.register(
            "before-call.dynamodb", lambda model, **_: sent.add(f"dynamodb:{model.name}")
        )
    lives(*locks)
    assert sent == actions(said)
    keys = said["Statement"][0]["Condition"]["ForAllValues:StringEquals"]["dynamodb:LeadingKeys"]
    assert keys == ["orders", f"orders{COUNTER}"]


def denying(lock: DynamoDBLock, right: str, sent: set[str]) -> None:
    """As IAM without this permission: such a request is answered with AccessDeniedException."""
    body = json.dumps({"__type": "com.amazon.coral.service#AccessDeniedException",
                       "Message": f"not authorized to perform: {right}"}).encode()  # fmt: skip

    def refuse(request: Any, event_name: str, **_: Any) -> AWSResponse | None:
        name = f"dynamodb:{event_name.rpartition('.')[2]}"
        sent.add(name)
        if name != right:
            return None
        raw = HTTPResponse(io.BytesIO(body), preload_content=False)
        return AWSResponse(request.url, 400, {"content-type": "application/x-amz-json-1.0"}, raw)

    lock._table._client.meta.events.register("before-send.dynamodb", refuse)


@pytest.mark.xdist_group("dynamodb")
@pytest.mark.parametrize("right", sorted(actions(policy("dynamodb"))))
def test_a_lock_of_dynamodb_needs_each_permission_of_its_document(
    dynamodb: Any, right: str
) -> None:
    table, sent = f"needs-{right.partition(':')[2]}", set[str]()
    locks = [DynamoDBLock(table, "orders", endpoint_url=dynamodb.endpoint) for _ in range(2)]
    for each in locks:
        denying(each, right, sent)
    with pytest.raises(StoreError, match="AccessDenied"):
        lives(*locks)
    assert right in sent


def for_moto(name: str, without: str = "") -> str:
    """The document's actions: moto judges no resource of DynamoDB, and no condition."""
    said = actions(policy(name)) - {without}
    allowed = {"Effect": "Allow", "Action": sorted(said), "Resource": "*"}
    return json.dumps({"Version": "2012-10-17", "Statement": [allowed]})


@pytest.fixture(scope="module")
def judging() -> Iterator[Callable[[str], dict[str, Any]]]:
    """A DynamoDB that verifies signatures, and judges each action by the user's document.

    Called with a document, it makes a user of it: the endpoint and the credentials.
    """
    pytest.importorskip("moto.server", reason="moto is not installed: pip install 'lockkit[test]'")
    port = peer_servers.free_port()
    with peer_servers.served([sys.executable, "-c", peer_servers.MOTO, str(port)], port) as there:
        root: dict[str, Any] = {"aws_access_key_id": "root", "aws_secret_access_key": "root"}
        iam = boto3.client("iam", endpoint_url=there, region_name="us-east-1", **root)
        names = count()

        def judges(times: str) -> None:  # moto counts the requests that it does not judge
            url, text = f"{there}/moto-api/reset-auth", {"Content-Type": "text/plain"}
            urlopen(Request(url, times.encode(), text, method="POST")).close()

        def user(document: str) -> dict[str, Any]:
            judges("inf")
            who = {"UserName": f"user-{next(names)}"}
            iam.create_user(**who)
            iam.put_user_policy(**who, PolicyName="least", PolicyDocument=document)
            key = iam.create_access_key(**who)["AccessKey"]
            judges("0")
            keys = {"aws_access_key_id": key["AccessKeyId"],
                    "aws_secret_access_key": key["SecretAccessKey"]}  # fmt: skip
            return {"endpoint_url": there, "aws": keys}

        yield user


def test_a_server_that_judges_actions_lets_a_lock_live_by_dynamodbs_document(judging: Any) -> None:
    how = judging(for_moto("dynamodb"))
    lives(*[DynamoDBLock("locks", "orders", **how) for _ in range(2)])


@pytest.mark.parametrize("right", sorted(actions(policy("dynamodb"))))
def test_a_server_that_judges_actions_refuses_a_lock_without_any_one_of_them(
    judging: Any, right: str
) -> None:
    how = judging(for_moto("dynamodb", without=right))
    table = f"without-{right.partition(':')[2]}"
    with pytest.raises(StoreError, match="403"):
        lives(*[DynamoDBLock(table, "orders", **how) for _ in range(2)])


def test_a_server_that_judges_actions_shows_on_call_staff_the_holder_and_refuses_the_break(
    judging: Any,
) -> None:
    writer = DynamoDBLock("shown", "orders", **judging(for_moto("dynamodb")))
    reader = DynamoDBLock("shown", "orders", **judging(for_moto("dynamodb_on_call")))
    with writer:
        found = reader.holder()
        assert found is not None
        with pytest.raises(StoreError, match="403"):
            reader.break_lock(found.version, force=True)
        assert writer.owned()


@pytest.mark.xdist_group("dynamodb")
def test_on_call_staff_need_one_permission_to_see_who_holds_a_lock_of_dynamodb(
    dynamodb: Any,
) -> None:
    """`lock show`, `watch` and `incident` call `holder`; a break needs more."""
    (right,) = actions(policy("dynamodb_on_call"))
    writer, reader, nobody = (
        DynamoDBLock("on-call", "orders", endpoint_url=dynamodb.endpoint) for _ in range(3)
    )
    sent = set[str]()
    denying(reader, "dynamodb:DeleteItem", sent)
    denying(nobody, right, set())
    with writer:
        found = reader.holder()
        assert found is not None and sent == {right}
        with pytest.raises(StoreError, match="AccessDenied"):
            nobody.holder()
        with pytest.raises(StoreError, match="AccessDenied"):
            reader.break_lock(found.version, force=True)


def test_on_call_staff_read_the_table_and_its_lock_with_the_documented_rights(
    emulator: Any,
) -> None:
    url, options = "s3://lake/orders", {"endpoint": emulator.s3}
    with Table.create(url, record_key="id", **options) as table:
        table.append(pa.table({"id": ["a"]}))
    sent = emulator.requests
    before = len(sent())
    with closing(open_store(url, **options)) as store:
        examine(store, watch_s=0.0)
    seen = sent()[before:]
    assert {each["method"] for each in seen} <= {"get", "head", "list"}
    assert {each["key"].removeprefix("orders/").partition("/")[0] for each in seen} == {".hoodie"}
    said = policy("s3_on_call")
    assert actions(said) == {
        "s3:GetObject",
        "s3:GetObjectVersion",
        "s3:ListBucket",
        "s3:ListBucketVersions",
    }
    assert said["Statement"][0]["Resource"] == "arn:aws:s3:::lake/orders/.hoodie/*"


@contextmanager
def enforcing(db: Path, *names: str) -> Iterator[Any]:
    policy = read_policy((POLICIES / f"{name}.json").read_text() for name in names)
    with Emulator(db=str(db), policy=policy) as server:
        yield server


def test_the_server_enforces_the_documented_rights(tmp_path: Path) -> None:
    url, db = "s3://lake/orders", tmp_path / "objects.sqlite"
    with Emulator(db=str(db)) as server:
        with Table.create(url, record_key="id", endpoint=server.s3) as table:
            table.append(pa.table({"id": ["a"]}))
    with enforcing(db, "s3", "s3_conditions_required") as server:
        lives(Lock(url, endpoint=server.s3), Lock(url, endpoint=server.s3))
        elsewhere = Lock("s3://lake/customers", endpoint=server.s3)
        with pytest.raises(StoreError, match="denied"):
            elsewhere.acquire(timeout=0)
    with enforcing(db, "s3_on_call") as server:
        with closing(open_store(url, endpoint=server.s3)) as store:
            found = examine(store, watch_s=0.0)
            assert found.kept and not found.untold
            with pytest.raises(StoreError, match="denied"):
                store.put("x", b"", IfAbsent())
        never = "s3://lake/orders/.hoodie/never-locked"  # its lock is below the same prefix
        assert main(["lock", "show", never, "--endpoint", server.s3]) == 0
    with enforcing(db, "s3") as server:
        with closing(open_store(url, endpoint=server.s3)) as store:
            with pytest.raises(StoreError, match="denied"):
                list(store.versions(LOCK_KEY))
        assert main(["lock", "show", url, "--endpoint", server.s3]) == 0


def test_the_missing_right_to_read_old_versions_is_named_and_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, db, said = "s3://lake/orders", tmp_path / "objects.sqlite", policy("s3_on_call")
    with Emulator(db=str(db)) as server:
        lives(Lock(url, endpoint=server.s3), Lock(url, endpoint=server.s3))
    said["Statement"][0]["Action"] = ["s3:GetObject"]
    with Emulator(db=str(db), policy=read_policy([json.dumps(said)])) as server:
        assert main(["lock", "show", url, "--endpoint", server.s3]) == 0
    assert set(re.findall(r"s3:\w+", capsys.readouterr().out)) == {"s3:GetObjectVersion"}


def test_a_bucket_policy_refuses_writes_and_deletes_without_a_condition(tmp_path: Path) -> None:
    key = f"orders/{LOCK_KEY}"
    with enforcing(tmp_path / "objects.sqlite", "s3_conditions_required") as server:
        s3 = boto3.client("s3", endpoint_url=server.s3, region_name="us-east-1",
                          aws_access_key_id="a", aws_secret_access_key="b")  # fmt: skip
        made = s3.put_object(Bucket="lake", Key=key, Body=b"1", IfNoneMatch="*")
        for refused in (
            lambda: s3.put_object(Bucket="lake", Key=key, Body=b"2"),
            lambda: s3.delete_object(Bucket="lake", Key=key),
            lambda: s3.copy_object(Bucket="lake", Key=key, CopySource=f"lake/{key}"),
        ):
            with pytest.raises(ClientError, match="AccessDenied"):
                refused()
        s3.put_object(Bucket="lake", Key="orders/other", Body=b"2")
        s3.put_object(Bucket="lake", Key=key, Body=b"3", IfMatch=made["ETag"])


def test_without_the_right_to_list_a_missing_object_is_403_and_not_404() -> None:
    said = policy("s3")
    whole, reads_only = said["Statement"], said["Statement"][:1]
    here = f"/lake/orders/{LOCK_KEY}"
    for statements, status in ((whole, 404), (reads_only, 403)):
        with Emulator(policy=read_policy([json.dumps({"Statement": statements})])) as server:
            with pytest.raises(HTTPError) as refused:
                urlopen(server.s3 + here)
            assert refused.value.code == status


def test_googles_roles_are_enforced(tmp_path: Path) -> None:
    url, db = "gs://lake/orders", tmp_path / "objects.sqlite"
    with enforcing(db, "gcs") as server:
        lives(Lock(url, endpoint=server.gcs), Lock(url, endpoint=server.gcs))
        elsewhere = Lock("gs://lake/customers", endpoint=server.gcs)
        with pytest.raises(StoreError, match="denied"):
            elsewhere.acquire(timeout=0)
        for path in ("/lake/orders/x", "/storage/v1/b", "/storage/v1/b/lake"):
            with pytest.raises(HTTPError, match=r"403|501"):
                urlopen(server.gcs + path)
    with enforcing(db, "gcs_on_call") as server:
        reads_only(url, server.gcs)
    said = policy("gcs") | {"bindings": policy("gcs")["bindings"][:1]}  # without the right to list
    with Emulator(policy=read_policy([json.dumps(said)])) as server:
        with closing(open_store(url, endpoint=server.gcs)) as store:
            with pytest.raises(StoreError, match="denied"):
                store.get(LOCK_KEY)


def test_azures_role_is_enforced(tmp_path: Path) -> None:
    url, db = "az://lake/orders", tmp_path / "objects.sqlite"
    with enforcing(db, "azure") as server:
        lives(Lock(url, endpoint=server.azure), Lock(url, endpoint=server.azure))
        lives(*(AzureBlobLease("az://lake/lock", endpoint=server.azure) for _ in range(2)))
        with closing(open_store(url, endpoint=server.azure)) as store:
            with pytest.raises(StoreError, match="denied"):
                store.delete(LOCK_KEY)
        elsewhere = Lock("az://other/orders", endpoint=server.azure)
        with pytest.raises(StoreError, match="denied"):
            elsewhere.acquire(timeout=0)
    with enforcing(db, "azure_on_call") as server:
        reads_only(url, server.azure)


def reads_only(url: str, endpoint: str) -> None:
    """What on-call staff run works, and no write does."""
    with closing(open_store(url, endpoint=endpoint)) as store:
        found = examine(store, watch_s=0.0)
        assert found.kept and not found.untold
        with pytest.raises(StoreError, match="denied"):
            store.put("x", b"", IfAbsent())
        with pytest.raises(StoreError, match="denied"):
            store.delete(LOCK_KEY)


@pytest.mark.parametrize(("name", "change"), [
    ("gcs", {"bindings": [{"role": "roles/storage.admin"}]}),
    ("gcs", {"bindings": [{"role": "x/lockkitLister", "condition": {"expression": "true"}}]}),
    ("azure", {"NotDataActions": ["x"]}), ("azure", {"DataActions": ["Microsoft.Storage/*"]}),
    ("azure", {"AssignableScopes": ["/subscriptions/S"]}), ("azure", {"AssignableScopes": []}),
    ("gcs", {"bindings": []}), ("gcs", {"bindings": [5]}), ("azure", {"DataActions": [5]}),
])  # fmt: skip
def test_a_role_with_a_part_that_cannot_be_judged_is_refused(
    name: str, change: dict[str, Any]
) -> None:
    said = policy(name)
    read_policy([json.dumps(said)])
    with pytest.raises(ValueError):
        read_policy([json.dumps(said | change)])


@pytest.mark.parametrize("change", [
    {"Condition": {"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}}}, {"NotAction": "s3:*"},
    {"Condition": {"StringLike": {"aws:username": "a"}}}, {"Effect": "Perhaps"},
    {"Action": 5}, {"Action": None}, {"Action": []}, {"Action": "GetObject"}, {"Resource": []},
    {"Resource": "lake/*"}, {"Resource": "arn:aws:s3:::lake/${aws:username}/*"},
    {"Condition": "x"}, {"Condition": {"StringEquals": 5}}, {"Effect": ["Allow"]},
    {"Condition": {"StringEquals": {"s3:prefix": None}}},
])  # fmt: skip
def test_a_policy_with_a_part_that_cannot_be_judged_is_refused(change: dict[str, Any]) -> None:
    statement = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
    read_policy([json.dumps({"Statement": [statement]})])
    with pytest.raises(ValueError):
        read_policy([json.dumps({"Statement": [statement | change]})])


ALLOW = '{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}'


@pytest.mark.parametrize(("text", "why"), [
    ('{"Statement": []}', "at least one statement"),
    (f'{{"Statement": {ALLOW}}}', "Statement must be a list"),
    (f'{{"Statement": [{ALLOW}], "Statement": []}}', "occurs twice"),
    (f'{{"Statement": [{ALLOW}], "Foo": 1}}', "no 'Foo'"),
    (f'{{"Statement": [{ALLOW}], "Version": "2013-01-01"}}', "not '2013-01-01'"),
    ("[" * 100_000, "nested too deeply"), ("[1]", "neither an AWS policy"),
], ids=["none", "single", "twice", "key", "version", "deep", "list"])  # fmt: skip
def test_serve_refuses_a_policy_of_another_form_in_one_sentence(
    text: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.json").write_text(text)
    assert main(["serve", "--policy", str(tmp_path / "p.json")]) == EXIT_FAILED
    said = capsys.readouterr().err
    assert why in said and said.count("\n") == 1


def test_serve_reads_no_endless_policy_and_waits_for_no_pipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--policy", "/dev/zero"]) == EXIT_FAILED
    assert "a policy has at most" in capsys.readouterr().err
    os.mkfifo(tmp_path / "pipe")
    assert main(["serve", "--policy", str(tmp_path / "pipe")]) == EXIT_FAILED
    assert capsys.readouterr().err.count("\n") == 1


def test_a_condition_may_compare_with_a_number_or_a_boolean() -> None:
    for value, allowed in ((5, "5"), (True, "true")):
        wanted = {"StringEquals": {"s3:prefix": value}}
        said = {"Statement": [json.loads(ALLOW) | {"Condition": wanted}]}
        statement = read_policy([json.dumps(said)]).statements[0]
        assert statement.applies("s3:ListBucket", "x", {"s3:prefix": allowed})
        assert not statement.applies("s3:ListBucket", "x", {"s3:prefix": "other"})


@pytest.mark.parametrize(("kind", "scheme"), [("s3", "s3"), ("gcs", "gs"), ("azure", "az")])
def test_a_lock_object_is_only_read_and_written_and_never_without_a_condition(
    kind: str, scheme: str, emulator: Any
) -> None:
    url, endpoint = f"{scheme}://lake/orders", getattr(emulator, kind)
    lives(Lock(url, endpoint=endpoint), Lock(url, endpoint=endpoint))
    sent = emulator.requests()
    assert {each["key"] for each in sent} == {f"orders/{LOCK_KEY}", f"orders/{TABLE_KEY}"}
    assert TABLE_KEY.rpartition("/")[0] == LOCK_KEY.rpartition("/")[0], "one rule covers both"
    assert {each["method"] for each in sent} == {"get", "put"}
    assert all(each["condition"] for each in sent if each["method"] == "put")
    assert actions(policy("s3")) == {"s3:GetObject", "s3:PutObject", "s3:ListBucket"}
    assert any(each["status"] == 404 for each in sent), "what ListBucket is for"


def test_a_lease_reads_and_writes_its_blob_and_nothing_else(emulator: Any) -> None:
    locks = [AzureBlobLease("az://lake/lock", endpoint=emulator.azure) for _ in range(2)]
    lives(*locks)
    sent = emulator.requests()
    assert {each["key"] for each in sent} == {"lock"}
    # A HEAD and a GET are reads; the requests of a lease and for metadata (patch) are writes.
    assert {each["method"] for each in sent} == {"head", "put", "lease", "patch"}
    rights = {each.rpartition("/")[2] for each in policy("azure")["DataActions"]}
    assert rights == {"read", "write"}


def test_the_bucket_policy_denies_only_what_has_neither_condition() -> None:
    writes, deletes = policy("s3_conditions_required")["Statement"]
    assert {writes["Effect"], deletes["Effect"]} == {"Deny"}
    assert writes["Condition"]["Null"] == {"s3:if-none-match": "true", "s3:if-match": "true"}
    assert deletes["Condition"]["Null"] == {"s3:if-match": "true"}
    here = f"arn:aws:s3:::lake/orders/{LOCK_KEY.rpartition('/')[0]}/*"
    assert {writes["Resource"], deletes["Resource"]} == {here}
    assert policy("s3")["Statement"][0]["Resource"] == here


def without(said: Any, right: str) -> Any:
    """The document without one permission."""
    if isinstance(said, dict):
        return {key: without(each, right) for key, each in said.items()}
    if isinstance(said, list):
        whole = [each for each in said if not isinstance(each, dict) or each.get("Action") != right]
        return [without(each, right) for each in whole if each != right]
    return said


def rights(name: str) -> list[str]:
    said = policy(name)
    if "Statement" in said:
        return sorted(actions(said))
    each_role = said["roles"].values() if "roles" in said else [said["DataActions"]]
    return sorted(right for role in each_role for right in role)


WRITERS = {"s3": "s3", "gcs": "gs", "azure": "az"}
ON_CALL = {f"{name}_on_call": scheme for name, scheme in WRITERS.items()}


@pytest.mark.parametrize(
    ("name", "right"), [(name, right) for name in WRITERS for right in rights(name)]
)
def test_a_lock_needs_each_permission_of_its_document(name: str, right: str) -> None:
    url = f"{WRITERS[name]}://lake/orders"
    with Emulator(policy=read_policy([json.dumps(without(policy(name), right))])) as server:
        at = {"endpoint": getattr(server, name), "ttl_s": 10}
        with pytest.raises(StoreError, match=r"denied|403"):
            lives(Lock(url, **at), Lock(url, **at))


@pytest.mark.parametrize("name", ON_CALL)
def test_the_commands_of_on_call_staff_need_each_permission_of_their_document(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, url = name.removesuffix("_on_call"), f"{ON_CALL[name]}://lake/orders"
    db = tmp_path / "objects.sqlite"
    with Emulator(db=str(db)) as server:
        endpoint = getattr(server, kind)
        with Table.create(url, record_key="id", endpoint=endpoint, commit="serial") as table:
            table.append(pa.table({"id": ["a"]}))  # with its lock, which has a history

    def refused(said: Any) -> str:
        """The first command that fails, or prints that something was denied; "" for none."""
        with Emulator(db=str(db), policy=read_policy([json.dumps(said)])) as server:
            to = [url, "--endpoint", getattr(server, kind)]
            for command in (
                ["lock", "show"], ["history"], ["table", "show"], ["incident", "--watch-s", "0"],
            ):  # fmt: skip
                code = main([*command, *to])
                printed = "".join(capsys.readouterr())
                if code or "denied" in printed or re.search(r"\b403\b", printed):
                    return command[0]
            return ""

    assert refused(policy(name)) == ""
    for right in rights(name):
        assert refused(without(policy(name), right)), f"no command needs {right}"


@pytest.mark.parametrize(("name", "right"), [
    ("s3_on_call", "s3:ListBucket"), ("gcs_on_call", "storage.objects.list"),
])  # fmt: skip
def test_an_incident_without_the_right_to_list_shows_the_lock_and_names_the_right(
    name: str, right: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, url = name.removesuffix("_on_call"), f"{ON_CALL[name]}://lake/orders"
    db = tmp_path / "objects.sqlite"
    with Emulator(db=str(db)) as server:
        with Lock(url, endpoint=getattr(server, kind), client="etl"):
            pass
    said = read_policy([json.dumps(without(policy(name), right))])
    with Emulator(db=str(db), policy=said) as server:
        assert main(["incident", url, "--watch-s", "0", "--endpoint", getattr(server, kind)]) == 2
    printed = capsys.readouterr().out
    assert "  released: " in printed and "  no table to be read: " in printed
    assert "run      lockkit" in printed
    assert "cannot list .hoodie/.locks/audit/*, it answered 403" in printed
    assert f"need {right} on the bucket" in printed

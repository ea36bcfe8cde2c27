"""object_store's own integration suite, built from its crate: Rust's client judges the server.

Its build takes a quarter of an hour on one core, once; what it needs is cargo and crates.io.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

from environment import ROOT, Unavailable

VERSION = "0.14.2"
NAME = f"object_store-{VERSION}"
SHA256 = "f1796bc93603f78c5760a69f2d58badc9618d22adade0a95385bb2adbae4eb94"
HOME = ROOT / ".cache" / "object_store"
BUILD_S_MAX, RUN_S_MAX = 3600.0, 600.0
QUICKER = {
    "CARGO_PROFILE_DEV_DEBUG": "0", "CARGO_PROFILE_TEST_DEBUG": "0", "CARGO_INCREMENTAL": "0",
}  # fmt: skip
KEY = "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE="
BUCKETS = (
    "test-bucket", "test-bucket-for-spawn", "test-bucket-for-checksum",
    "test-bucket-for-copy-if-not-exists", "test-bucket-for-signing", "test-object-lock",
)  # fmt: skip
TESTS = {"s3": "aws::tests::", "gcs": "gcp::test::", "azure": "azure::tests::"}
# For emulators that lack conditions and XML uploads, the suite leaves out most of its GCS tests.
FOR_LESSER_EMULATORS = "integration.client.config().base_url == DEFAULT_GCS_BASE_URL"


def suite() -> Path:
    """The program that holds the tests; raises `Unavailable` without cargo or crates.io."""
    cargo = shutil.which("cargo")
    if cargo is None:
        raise Unavailable("there is no cargo on PATH")
    folder, ready = HOME / NAME, HOME / ".ready"
    if not ready.is_file() or not Path(ready.read_text()).is_file():
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(_fetch(cargo), folder)
        gcs = folder / "src" / "gcp" / "mod.rs"
        text = gcs.read_text()
        assert FOR_LESSER_EMULATORS in text
        gcs.write_text(text.replace(FOR_LESSER_EMULATORS, "true"))
        ready.write_text(str(_build(cargo, folder)))
    return Path(ready.read_text())


def _fetch(cargo: str) -> Path:
    """The crate's source, as cargo brings it for a project that depends on it."""
    project = HOME / "project"
    (project / "src").mkdir(parents=True, exist_ok=True)
    (project / "src" / "lib.rs").touch()
    (project / "Cargo.toml").write_text(
        '[package]\nname = "suite"\nversion = "0.0.0"\nedition = "2021"\n'
        f'[dependencies]\nobject_store = {{ version = "={VERSION}", default-features = false }}\n'
    )
    done = subprocess.run(
        [cargo, "metadata", "--format-version", "1"],
        cwd=project, text=True, capture_output=True, timeout=RUN_S_MAX,
    )  # fmt: skip
    if done.returncode:
        raise Unavailable(f"object_store could not be fetched: {done.stderr[-300:]}")
    assert SHA256 in (project / "Cargo.lock").read_text(), "another crate than the pinned one"
    packages = json.loads(done.stdout)["packages"]
    manifest = next(each["manifest_path"] for each in packages if each["name"] == "object_store")
    return Path(manifest).parent


def _build(cargo: str, folder: Path) -> Path:
    done = subprocess.run(
        [cargo, "test", "--lib", "--no-run", "--features", "aws,azure,gcp,http,integration"],
        cwd=folder, env=os.environ | QUICKER,
        text=True, capture_output=True, timeout=BUILD_S_MAX,
    )  # fmt: skip
    if done.returncode:
        raise Unavailable(f"object_store could not be built: {done.stderr[-300:]}")
    named = re.search(r"Executable .*\((.+)\)", done.stderr)
    assert named, done.stderr[-1000:]
    return folder / named[1]


def settings(kind: str, server_url: str, folder: Path, *, signed: bool) -> dict[str, str]:
    """The environment in which the suite asks this server, with every test that it can run."""
    if kind == "s3":
        enforced = {"TEST_S3_SIGNATURE_ENFORCEMENT": "1"} if signed else {}
        return {
            "AWS_DEFAULT_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "id",
            "AWS_SECRET_ACCESS_KEY": "secret", "AWS_ENDPOINT": server_url,
            "AWS_ALLOW_HTTP": "true", "AWS_BUCKET_NAME": BUCKETS[0],
            "AWS_COPY_IF_NOT_EXISTS": "multipart", **enforced,
        }  # fmt: skip
    if kind == "gcs":
        account = folder / "account.json"
        account.write_text(
            f'{{"gcs_base_url": "{server_url}", "disable_oauth": true, "client_email": "", '
            '"private_key": "", "private_key_id": ""}'
        )
        return {"GOOGLE_BUCKET": BUCKETS[0], "GOOGLE_SERVICE_ACCOUNT": str(account)}
    return {
        "AZURE_CONTAINER_NAME": BUCKETS[0], "AZURE_STORAGE_ACCOUNT_NAME": "account",
        "AZURE_STORAGE_ACCOUNT_KEY": KEY, "AZURE_ENDPOINT": f"{server_url}/account",
        "AZURE_ALLOW_HTTP": "true",
    }  # fmt: skip


def run(program: Path, kind: str, variables: dict[str, str]) -> tuple[int, list[str], str]:
    """How many tests passed, which failed, and all that was said."""
    done = subprocess.run(
        [str(program), TESTS[kind], "--test-threads=1"],
        env=os.environ | variables | {"TEST_INTEGRATION": "1"},
        text=True, capture_output=True, timeout=RUN_S_MAX,
    )  # fmt: skip
    passed = re.search(r"(\d+) passed", done.stdout)
    failed = re.findall(r"^test (\S+) \.\.\. FAILED$", done.stdout, re.MULTILINE)
    return int(passed[1]) if passed else 0, failed, done.stdout[-5000:]

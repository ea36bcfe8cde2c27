"""A private Hive Metastore over Derby, from the jars inside pip's pyspark."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from xml.sax.saxutils import escape

from lockkit.lab.processes.services.service import Service, ServiceStartFailed, ask, jars, java

# Runs a Java source file where there is no compiler; Spark brings it for its own generated code.
JANINO = "org.codehaus.janino.SimpleCompiler"
SOURCE = Path(__file__).with_name("LoopbackMetastore.java")
IJ = "org.apache.derby.tools.ij"
TABLES_S_MAX = 60.0
MADE = "db.made"
"""A file beside the database, once its tables are complete."""
TABLES = Path(__file__).with_name("hive_locks.sql")
# Thrift's binary protocol: a call (version 1, sequence 0) of getStatus, which takes nothing.
STATUS = b"\x80\x01\x00\x01" + (9).to_bytes(4, "big") + b"getStatus" + bytes(4) + b"\x00"


class HiveMetastore(Service):
    """`timeout_s` is how long a lock lives without a heartbeat (Hive's own default is 300)."""

    name = "hive"

    def __init__(self, folder: Path | str, *, port: int | None = None, timeout_s: int = 10) -> None:
        super().__init__(folder, port=port)
        self.timeout_s = timeout_s

    def command(self) -> list[str]:
        conf = self.folder / "conf"
        conf.mkdir(exist_ok=True)
        (conf / "hive-site.xml").write_text(_site(self._settings()))
        if not (self.folder / MADE).exists():
            self._make_tables()
        return [
            *java("256m"), "-cp", f"{conf}:{jars()}/*",
            JANINO, str(SOURCE), SOURCE.stem, str(self.port),
        ]  # fmt: skip

    def answers(self) -> bool:
        return b"getStatus" in ask(self.port, STATUS)

    @property
    def url(self) -> str:
        return f"hive://{self.address}/default/orders"

    def recipe(self) -> dict[str, str]:
        prefix = "hoodie.write.lock.hivemetastore."
        return {
            "hoodie.write.lock.provider":
                "org.apache.hudi.hive.transaction.lock.HiveMetastoreBasedLockProvider",
            f"{prefix}uris": f"thrift://{self.address}",
            f"{prefix}database": "default",
            f"{prefix}table": "orders",
        }  # fmt: skip

    def _settings(self) -> dict[str, str]:
        return {
            "javax.jdo.option.ConnectionURL": "jdbc:derby:;databaseName=db;create=true",
            "javax.jdo.option.ConnectionDriverName": "org.apache.derby.iapi.jdbc.AutoloadedDriver",
            "datanucleus.schema.autoCreateAll": "true",
            "hive.metastore.schema.verification": "false",
            "hive.metastore.uris": f"thrift://{self.address}",
            "hive.metastore.warehouse.dir": str(self.folder / "warehouse"),
            # Spark's jars have neither the disruptor nor BoneCP, which are the defaults.
            "hive.async.log.enabled": "false",
            "datanucleus.connectionPoolingType": "HikariCP",
            # Locks of dead clients are removed only with all of these.
            "hive.support.concurrency": "true",
            "hive.txn.manager": "org.apache.hadoop.hive.ql.lockmgr.DbTxnManager",
            "hive.txn.timeout": f"{self.timeout_s}s",
            "hive.timedout.txn.reaper.start": "1s",
            "hive.timedout.txn.reaper.interval": "1s",
        }

    def _make_tables(self) -> None:
        script = self.folder / "tables.sql"
        shutil.rmtree(self.folder / "db", ignore_errors=True)  # half created, by an interrupted run
        connect = "CONNECT 'jdbc:derby:;databaseName=db;create=true';\n"
        script.write_text(connect + TABLES.read_text())
        try:
            made = subprocess.run(
                [*java("128m"), f"-Dderby.stream.error.file={self.folder / 'derby.log'}",
                 "-cp", f"{jars()}/*", IJ, str(script)],
                cwd=self.folder, capture_output=True, text=True, timeout=TABLES_S_MAX, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise ServiceStartFailed(
                "Derby", f"did not make the lock tables in {self.folder} in {TABLES_S_MAX:.0f} s"
            ) from None
        if made.returncode != 0 or "ERROR" in made.stdout:
            raise ServiceStartFailed(
                "Derby",
                f"did not make the lock tables in {self.folder}: "
                f"{(made.stderr or made.stdout)[-500:]}",
            )
        (self.folder / MADE).touch()


def _site(settings: dict[str, str]) -> str:
    rows = (
        f"  <property><name>{escape(name)}</name><value>{escape(value)}</value></property>\n"
        for name, value in settings.items()
    )
    return f"<configuration>\n{''.join(rows)}</configuration>\n"

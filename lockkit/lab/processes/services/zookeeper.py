"""A private ZooKeeper server, from the jars inside pip's pyspark."""

from __future__ import annotations

from lockkit.lab.processes.services.service import Service, ask, jars, java

TICK_MS = 500
"""A session lasts at least two ticks; with ZooKeeper's default of 2 s an expiry takes too long to
watch."""
SESSION_MS_MAX = 300_000


class ZooKeeper(Service):
    name = "zookeeper"

    def command(self) -> list[str]:
        settings = {
            "tickTime": TICK_MS,
            "maxSessionTimeout": SESSION_MS_MAX,
            "dataDir": self.folder / "data",
            "clientPort": self.port,
            "clientPortAddress": "127.0.0.1",
            "admin.enableServer": "false",
            "maxClientCnxns": 0,
            "4lw.commands.whitelist": "ruok",
        }
        file = self.folder / "zoo.cfg"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return [
            *java("128m"), "-cp", f"{jars()}/*",
            "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(file),
        ]  # fmt: skip

    def answers(self) -> bool:
        return ask(self.port, b"ruok") == b"imok"

    @property
    def url(self) -> str:
        return f"zookeeper://{self.address}/hudi/locks/orders"

    def recipe(self) -> dict[str, str]:
        prefix = "hoodie.write.lock.zookeeper."
        return {
            "hoodie.write.lock.provider":
                "org.apache.hudi.client.transaction.lock.ZookeeperBasedLockProvider",
            f"{prefix}url": self.address,
            f"{prefix}base_path": "/hudi/locks",
            f"{prefix}lock_key": "orders",
        }  # fmt: skip

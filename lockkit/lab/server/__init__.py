"""An object server that speaks S3, Google Cloud Storage and Azure to the real SDKs.

One SQLite file, three addresses. Every version is kept and every request recorded as a `request`
event: that record is the truth lane of every picture. `with Emulator() as server:` runs it in a
thread; `lockkit serve` as a process. It listens on loopback unless another address is passed.
"""

from lockkit.lab.server.profiles import PROFILES as PROFILES
from lockkit.lab.server.profiles import ServerProfile as ServerProfile
from lockkit.lab.server.server import Emulator as Emulator
from lockkit.lab.server.sigv4 import Credentials as Credentials

__all__ = ["Credentials", "Emulator", "PROFILES", "ServerProfile"]

"""An object server that speaks S3, Google Cloud Storage and Azure to the real SDKs.

It has one SQLite file and three addresses. It keeps every version and records each request as a
`request` event. Pictures draw these events in the store's lane. `with Emulator() as server:` runs
it in a thread, `lockkit serve` as a process. It listens on loopback unless another
address is passed.
"""

from lockkit.lab.server.profiles import PROFILES as PROFILES
from lockkit.lab.server.profiles import ServerProfile as ServerProfile
from lockkit.lab.server.server import Emulator as Emulator
from lockkit.lab.server.sigv4 import Credentials as Credentials

__all__ = ["Credentials", "Emulator", "PROFILES", "ServerProfile"]

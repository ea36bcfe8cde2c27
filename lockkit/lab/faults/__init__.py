"""Faults on demand: a fault is data (`plan`), and two modules inject it below the SDKs.

plan      Fault and FaultPlan: which requests, how often, before or after the store applied them
dialects  reads an HTTP request in the dialect of S3, GCS, Azure or DynamoDB
armed     the faults in force, and the course of one request under them
wire      HTTP/1.1 messages as raw bytes
proxy     Proxy, in front of any store on HTTP
hooks     Faulty, in the client's process, also over TLS
"""

from lockkit.lab.faults.hooks import Faulty
from lockkit.lab.faults.plan import Counts, Fault, FaultError, FaultPlan, RequestFacts
from lockkit.lab.faults.proxy import Proxy, ProxyError

__all__ = [
    "Fault",
    "FaultPlan",
    "FaultError",
    "Proxy",
    "ProxyError",
    "Faulty",
    "Counts",
    "RequestFacts",
]

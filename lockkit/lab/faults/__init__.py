"""Faults on demand: what goes wrong is data (`plan`), and two places carry it out below the SDKs.

plan      Fault and FaultPlan: which requests, how often, before or after the store applied them
dialects  what an HTTP request asks of a store, in the words of S3, GCS, Azure or DynamoDB
armed     the faults in force, and the course of one request under them
wire      HTTP/1.1 messages as the bytes that came
proxy     Proxy, in front of any store on HTTP
hooks     Faulty, in the process of the client, also over TLS
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

"""Faults on demand: what goes wrong is data (`plan`), and a reverse proxy carries it out (`proxy`).

plan      Fault and FaultPlan: which requests, how often, before or after the store applied them
dialects  what an HTTP request asks of a store, in the words of S3, GCS or Azure
wire      HTTP/1.1 messages as the bytes that came
proxy     Proxy, in front of any store on HTTP
"""

from lockkit.faults.plan import Counts, Fault, FaultError, FaultPlan, Request
from lockkit.faults.proxy import Proxy, ProxyError

__all__ = ["Fault", "FaultPlan", "FaultError", "Proxy", "ProxyError", "Counts", "Request"]

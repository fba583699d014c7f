"""Tables of Ascend's databases: the columns that are read, and the names they have had.

Types are those wanted, not those declared: writers keep some integers as text (PYTORCH_API.startNs) or as numerics.
Older exports of torch_npu have names with underscores. Every name of an operator, a shape or a component is an id
into STRING_IDS. Facts: PROFILE_FORMATS, A.7; msprof's reference of its exports.
"""

from __future__ import annotations

import polars as pl

from profiler.read.ascend.sqlite_file import Columns

_I, _S, _F = pl.Int64, pl.String, pl.Float64
STRINGS: Columns = {"id": (_I, ("id",)), "value": (_S, ("value",))}
META: Columns = {"name": (_S, ("name",)), "value": (_S, ("value",))}
MODULES: Columns = {"module": (_I, ("id",)), "name": (_S, ("name",))}
TASKS: Columns = {
    "start": (_I, ("startNs",)),
    "end": (_I, ("endNs",)),
    "device": (_I, ("deviceId",)),
    "connection": (_I, ("connectionId",)),
    "task": (_I, ("globalTaskId",)),
    "stream": (_I, ("streamId",)),
    "kind": (_I, ("taskType",)),
}
KERNEL_INFO: Columns = {
    "task": (_I, ("globalTaskId",)),
    "name": (_I, ("name",)),
    "type": (_I, ("opType",)),
    "inputs": (_I, ("inputShapes",)),
    "input_types": (_I, ("inputDataTypes",)),
    "outputs": (_I, ("outputShapes",)),
    "output_types": (_I, ("outputDataTypes",)),
}
COLLECTIVES: Columns = {
    "name": (_I, ("opName",)),
    "type": (_I, ("opType",)),
    "start": (_I, ("startNs",)),
    "end": (_I, ("endNs",)),
    "connection": (_I, ("connectionId",)),
    "device": (_I, ("deviceId",)),
}
PARTS: Columns = {"task": (_I, ("globalTaskId",))}
CALLS: Columns = {"launched": (_I, ("startNs",)), "connection": (_I, ("connectionId",))}
CONNECTIONS: Columns = {"call": (_I, ("id",)), "connection": (_I, ("connectionId",))}
STEPS: Columns = {"step": (_I, ("id",)), "begin": (_I, ("startNs",)), "end": (_I, ("endNs",))}
STEP_TRACE: Columns = {
    "step": (_S, ("step",)),
    "number": (_I, ("step",)),
    "computing": (_F, ("computing",)),
    "communication": (_F, ("communication_not_overlapped",)),
    "free": (_F, ("free",)),
}
ALLOCATIONS: Columns = {
    "name": (_I, ("name",)),
    "bytes": (_I, ("size",)),
    "allocated": (_I, ("allocationTime", "allocation_time")),
    "freed": (_I, ("releaseTime", "release_time")),
    "total_after": (_I, ("allocationTotalAllocated", "allocation_total_allocated")),
    "total_freed": (_I, ("releaseTotalAllocated", "release_total_allocated")),
    "reserved": (_I, ("allocationTotalReserved", "allocation_total_reserved")),
    "active": (_I, ("allocationTotalActive", "allocation_total_active")),
    "pool_stream": (_I, ("streamPtr", "stream_ptr")),
    "device": (_I, ("deviceId",)),
}
ENGINE: Columns = {
    "name": (_I, ("operatorName",)),
    "address": (_I, ("addr",)),
    "kind": (_I, ("type",)),
    "bytes": (_I, ("size",)),
    "time": (_I, ("timestampNs",)),
    "total": (_I, ("totalAllocate",)),
    "reserved": (_I, ("totalReserve",)),
    "device": (_I, ("deviceId",)),
}
RECORD: Columns = {
    "component": (_I, ("component",)),
    "allocated": (_I, ("totalAllocated", "total_allocated")),
    "reserved": (_I, ("totalReserved", "total_reserved")),
    "device": (_I, ("deviceId",)),
}
PROCESS: Columns = {
    "kind": (_I, ("type",)),
    "ddr": (_I, ("ddr",)),
    "hbm": (_I, ("hbm",)),
    "device": (_I, ("deviceId",)),
}
MODULE_MEMORY: Columns = {
    "module": (_I, ("moduleId",)),
    "reserved": (_I, ("totalReserved",)),
    "device": (_I, ("deviceId",)),
}
RANKS: Columns = {"rank": (_I, ("rankId",)), "device": (_I, ("deviceId",))}
DEVICE_OF_TASK: Columns = {"device": TASKS["device"]}
DEVICES: Columns = {"device": (_I, ("id",)), "name": (_S, ("name",))}

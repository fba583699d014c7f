"""Reading the CPU profiler's files."""

from __future__ import annotations

import pytest

from profiler.read.mindspore.cpu_profiler import CpuProfilerError, Execution, read_executions, read_memory_record

TIMES = "Default/net-Net/MatMul-op0;HostCpuOps;2000000,0.272147,0 1000000,0.5,3 \n\nAdd;HostCpuOps;5,0.000001,0\n"
MEMORY = """Timestamp(ns),Total Allocated(Byte),Total Reserved(Byte),Total Active(Byte)
10,100,0,100
30,50,0,50
20,400,0,400
"""


def test_executions_are_in_order_of_start_with_ends_in_nanoseconds() -> None:
    found = read_executions(TIMES)
    assert found["Default/net-Net/MatMul-op0"] == [Execution(1000000, 1500000), Execution(2000000, 2272147)]
    assert found["Add"] == [Execution(5, 6)]


def test_a_damaged_line_is_named() -> None:
    with pytest.raises(CpuProfilerError, match="line 1"):
        read_executions("Add;HostCpuOps;5,zero,0")


def test_the_memory_record_is_in_order_of_time() -> None:
    record = read_memory_record(MEMORY)
    assert record.times == (10, 20, 30)
    assert record.between(10, 30) == [100, 400]


@pytest.mark.parametrize("text", ["", "Time,Bytes\n1,2\n", MEMORY + "40,many,0,0\n"])
def test_another_file_or_a_damaged_row_is_an_error(text: str) -> None:
    with pytest.raises(CpuProfilerError):
        read_memory_record(text)

"""The device a trace is imagined on: what durations are computed from. Inputs, not truths."""

from __future__ import annotations

from dataclasses import dataclass

from hyperopt.profile import Tier

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Accelerator:
    """Rates of one device, in FLOP/s, bytes/s and microseconds, and the shares of them that kernels reach.

    A kernel takes the longer of its arithmetic and its traffic, and `launch_us`; a collective its traffic over
    `network_bytes_per_s` and `network_us`.
    """

    name: str
    flops: float
    hbm_bytes_per_s: float
    network_bytes_per_s: float
    d2h_bytes_per_s: int
    h2d_bytes_per_s: int
    copy_us: float = 10.0
    duplex: bool = True
    network_us: float = 15.0
    launch_us: float = 3.0
    matmul_share: float = 0.6
    attention_share: float = 0.4
    hbm_share: float = 0.75

    def kernel_us(self, flops: float, traffic: float, *, attention: bool = False) -> float:
        share = self.attention_share if attention else self.matmul_share
        busy = max(flops / (self.flops * share), traffic / (self.hbm_bytes_per_s * self.hbm_share))
        return self.launch_us + busy * 1e6

    def collective_us(self, traffic: float) -> float:
        return self.network_us + traffic / self.network_bytes_per_s * 1e6

    def host(self, size: int) -> Tier:
        """Its host memory as a tier of `size` bytes."""
        return Tier(
            name="host",
            bytes=size,
            d2h_bytes_per_s=self.d2h_bytes_per_s,
            h2d_bytes_per_s=self.h2d_bytes_per_s,
            latency_us=self.copy_us,
            duplex=self.duplex,
        )


ASCEND_910C_DIE = Accelerator(
    name="Ascend 910C, one die (stated figures)",
    flops=376e12,
    hbm_bytes_per_s=1.6e12,
    network_bytes_per_s=150e9,
    d2h_bytes_per_s=20 * 10**9,
    h2d_bytes_per_s=55 * 10**9,
)
"""376 TFLOPS bfloat16 and 1.6 TB/s per die, 20 GB/s to the host and 55 GB/s back; the network figure is assumed."""

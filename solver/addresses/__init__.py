"""Address planning: offsets for storages that live at different times, so that the peak holds no fragmentation."""

from solver.addresses.allocate import Allocation, allocate
from solver.addresses.overlap import violations
from solver.addresses.problem import AddressError, Buffer
from solver.addresses.residency import buffers_of

__all__ = ["AddressError", "Allocation", "Buffer", "allocate", "buffers_of", "violations"]

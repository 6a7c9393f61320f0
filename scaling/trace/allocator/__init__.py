"""The CUDA caching allocator, replayed without a GPU."""

from scaling.trace.allocator.replay import OutOfMemory, ReplayResult, SectionPeak, replay

__all__ = ["OutOfMemory", "ReplayResult", "SectionPeak", "replay"]

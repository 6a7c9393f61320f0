"""Measured memory of a real run, by phase and cause."""

from scaling.meter.base import Meter, NoMeter, PhaseMeter
from scaling.meter.cuda_meter import CudaMeter
from scaling.meter.measurement import Measurement, Span, highest
from scaling.meter.storage_meter import StorageMeter

__all__ = ["CudaMeter", "Measurement", "Meter", "NoMeter", "PhaseMeter", "Span", "StorageMeter", "highest"]

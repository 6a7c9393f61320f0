"""Seconds per optimizer step by cause: FLOPs, bytes and messages over the rates of the hardware."""

"""Registers the kernel set "cpu", by importing the modules that hold it."""

import octavo.kernels.cpu.attention
import octavo.kernels.cpu.basic
import octavo.kernels.cpu.linear  # noqa: F401

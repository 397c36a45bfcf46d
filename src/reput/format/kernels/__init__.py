"""Batch kernels over log buffers: the layouts of this package at memory speed.

``scan`` splits a buffer into segments with verdicts, ``judge`` judges the records at given
positions, ``find_record`` finds the next record after damage, ``Columns`` decodes records into
Arrow-shaped buffers and computes what dispatch needs (tags codes, key hashes). They are written in
numba's subset of Python (modules ``log_scan``, ``columns``, ``hashes``) and compiled ahead of time;
``reference`` does the same in plain Python.

The engine is chosen once: ``native`` (the shared object of the wheel), else ``numba`` (compiled
here, cached), else ``reference``. ``REPUT_KERNELS`` asks for one of them (``kernel_choice``).
"""

from typing import TYPE_CHECKING

from reput.format.kernels.layout import Buffer, IntArray, Pairs, Runs, Segments, Words

__all__ = [
    "Buffer",
    "Columns",
    "IntArray",
    "Pairs",
    "Runs",
    "Segments",
    "Words",
    "checksum",
    "data_end",
    "engine",
    "find_record",
    "judge",
    "scan",
]

if TYPE_CHECKING:
    from reput.format.kernels.native import (
        Columns,
        checksum,
        data_end,
        engine,
        find_record,
        judge,
        scan,
    )
else:
    from reput.format.kernels import native

    try:
        native.engine()
        _chosen = native
    except native.KernelsUnavailable:
        from reput.format.kernels import reference as _chosen

    Columns = _chosen.Columns
    checksum = _chosen.checksum
    data_end = _chosen.data_end
    engine = _chosen.engine
    find_record = _chosen.find_record
    judge = _chosen.judge
    scan = _chosen.scan

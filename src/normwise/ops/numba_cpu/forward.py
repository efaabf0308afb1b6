"""The forward kernel, made for each norm, form and set of dtypes.

A kernel takes the address of a call (`calls.py`). Threads that are given the same address take
chunks of rows until none is left. What a chunk is depends on the shape alone, so that no result
depends on the number of threads.

The maker is one long function: its parts are compiled for the norm and the dtypes it gets.
"""

import numpy as np

from normwise.ops.forms import Form
from normwise.ops.numba_cpu.calls import ForwardCall
from normwise.ops.numba_cpu.lanes import LANES
from normwise.ops.numba_cpu.memory import buffer, reader, result_writer, rounder, writer
from normwise.ops.numba_cpu.parameters import ABSENT, parameter_reading
from normwise.ops.numba_cpu.parts import parts
from normwise.ops.numba_cpu.rows import (
    AHEAD,
    aligned,
    hold,
    next_chunk,
    padded,
    pair_at,
    place_of_thread,
    record,
    row_at,
)
from normwise.ops.numba_cpu.statistics import scaling, spread_statistics, unit_of

_CALL = np.dtype(ForwardCall)
_ARRIVED = _CALL.fields["arrived"][1]


def forward_kernel(norm, form, x_dtype, residual_dtype, y_dtype, stream_dtype, dtype):
    """y, the stream for the form that adds, and where they are kept the statistics of each row."""
    part = parts("forward", norm, form, x_dtype, residual_dtype, y_dtype, stream_dtype, dtype)
    unit = norm.unit
    adds, is_added = form is Form.ADD, form is Form.OUTPUT
    paired = x_dtype is np.uint16
    tame = paired and residual_dtype is np.uint16
    x_bytes, y_bytes, residual_bytes, stream_bytes, bytes_ = (
        np.dtype(kind).itemsize for kind in (x_dtype, y_dtype, residual_dtype, stream_dtype, dtype)
    )

    read_x = reader(x_dtype, dtype, paired=paired)
    read_residual = reader(residual_dtype, dtype, paired=paired)
    write_y = result_writer(y_dtype, dtype, paired=paired, tame=tame)
    write_stream = result_writer(stream_dtype, dtype, paired=paired, tame=tame)
    round_to_x = rounder(x_dtype, dtype, tame=tame)
    round_to_stream = rounder(stream_dtype, dtype, tame=tame)
    load, store = buffer(dtype)
    if adds:
        read, write = load, store
    else:
        read, write = read_x, writer(x_dtype, dtype, paired=paired, tame=False)
    scaled = scaling(part, read, write, dtype)
    statistics = norm.statistics(part, read, scaled, paired, dtype)
    parameter, read_parameter = parameter_reading(dtype, paired=paired)

    @part()
    def residual_row(call, i):
        return row_at(call.residual, call.residual_step, call.residual_table, i, residual_bytes)

    @part(forceinline=True)
    def add_at(j, end, rounded, past, x, residual, stream, total):
        """The sum, as the stream holds it or before it is rounded."""
        value = read_x(x, j, end) + read_residual(residual, j, end)
        write_stream(stream, j, end, value, past)
        store(total, j, end, round_to_stream(value) if rounded else value)

    @part()
    def add(call, x, residual, stream, total):
        size, rounded, past = call.size, call.rounded, call.past != 0
        whole = size // LANES * LANES
        for j in range(0, whole, LANES):
            add_at(j, j + LANES, rounded, past, x, residual, stream, total)
        for j in range(whole, padded(size), LANES):
            add_at(j, size, rounded, past, x, residual, stream, total)

    @part(forceinline=True)
    def begin(call, i, totals, spare):
        """The row that is normed, and its statistics."""
        size = call.size
        row = row_at(call.x, call.x_step, call.x_table, i, x_bytes)
        if adds:
            total = totals + (i & 1) * padded(size) * bytes_
            stream = row_at(call.stream, size, 0, i, stream_bytes)
            add(call, row, residual_row(call, i), stream, total)
            row = total
        mean, inverse = statistics(row, size, call.eps, spare)
        if call.saved:
            saved = pair_at(call.saved, i)
            saved[0], saved[1] = mean, inverse
        return row, mean, inverse

    @part(forceinline=True)
    def write_at(j, end, llama, has_bias, past, row, centred, gain, bias, residual, y):
        """g n + b, each step rounded by itself."""
        n = unit(read(row, j, end), *centred)
        if llama:
            n = round_to_x(n)
        n = n * read_parameter(gain, j, end)
        if has_bias:
            n = n + read_parameter(bias, j, end)
        if is_added:
            n = read_residual(residual, j, end) + round_to_x(n)
        write_y(y, j, end, n, past)

    @part()
    def write_row(call, row, mean, inverse, gain, bias, residual, y):
        size, llama = call.size, call.llama
        has_bias, past = call.bias_kind != ABSENT, call.past != 0
        centred = spread_statistics(mean, dtype(inverse), dtype)
        whole = size // LANES * LANES
        for j in range(0, whole, LANES):
            write_at(j, j + LANES, llama, has_bias, past, row, centred, gain, bias, residual, y)
        if whole < size:
            write_at(whole, size, llama, has_bias, past, row, centred, gain, bias, residual, y)

    @part(forceinline=True)
    def finish(call, i, found, gain, bias, spare):
        size, (row, mean, inverse) = call.size, found
        y = row_at(call.y, size, 0, i, y_bytes)
        residual = residual_row(call, i) if is_added else y
        scale = unit_of(inverse, dtype)
        if scale != 1.0:
            row, mean, inverse = scaled(row, size, scale, spare), mean * scale, inverse / scale
        write_row(call, row, mean, inverse, gain, bias, residual, y)

    @part()
    def norm_rows(call, first, last, gain, bias, totals, spare):
        ahead = call.size * x_bytes <= AHEAD
        row, mean, inverse = begin(call, first, totals, spare)
        for i in range(first, last):
            found, more = (row, mean, inverse), i + 1 < last
            if more and ahead:
                row, mean, inverse = begin(call, i + 1, totals, spare)
            finish(call, i, found, gain, bias, spare)
            if more and not ahead:
                row, mean, inverse = begin(call, i + 1, totals, spare)

    def kernel(address):
        call = record(address, _CALL)
        size, step = call.size, padded(call.size) * bytes_
        space = np.empty(5 * padded(size) + LANES, dtype)
        place = aligned(space)
        totals, spare = place + 2 * step, place + 4 * step
        gain = parameter(call.weight, call.weight_kind, size, call.unit_offset, place)
        bias = parameter(call.bias, call.bias_kind, size, 0, place + step)
        thread = place_of_thread(call, address + _ARRIVED)
        while True:
            chunk = next_chunk(call, thread)
            if chunk < 0:
                break
            first = chunk * call.rows_per_chunk
            last = min(first + call.rows_per_chunk, call.rows)
            norm_rows(call, first, last, gain, bias, totals, spare)
        hold(space)

    return kernel

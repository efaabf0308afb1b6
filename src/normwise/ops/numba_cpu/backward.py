"""The backward kernel, made for each norm, source and set of dtypes.

Each chunk of rows (`forward.py`) has its own sums of parameter gradients, in the dtype of the
arithmetic and over 64 rows at most; whoever finishes the last chunk adds them up in fp64. So these
too are the same for any number of threads.
"""

import numpy as np

from normwise.ops.numba_cpu.calls import BackwardCall
from normwise.ops.numba_cpu.lanes import LANES, STRIDE, fma, spread, total
from normwise.ops.numba_cpu.memory import (
    buffer,
    limiter,
    reader,
    result_writer,
    rounder,
    writer,
)
from normwise.ops.numba_cpu.parameters import gradient_sum, parameter_reading
from normwise.ops.numba_cpu.parts import parts
from normwise.ops.numba_cpu.rows import (
    AHEAD,
    aligned,
    count_one,
    hold,
    next_chunk,
    padded,
    pair_at,
    place_of_thread,
    record,
    row_at,
)
from normwise.ops.numba_cpu.statistics import BLOCK, scaling, spread_statistics, unit_of

_CALL = np.dtype(BackwardCall)
_ARRIVED, _DONE = _CALL.fields["arrived"][1], _CALL.fields["done"][1]


def backward_kernel(
    norm, source, x_dtype, residual_dtype, dy_dtype, dstream_dtype, dx_dtype, like, dtype
):
    """dx by rows, and the sums over rows of n dy and of dy; each only where it is wanted.

    `like` is the dtype to which `llama` rounded n in the forward pass.
    """
    dtypes = (x_dtype, residual_dtype, dy_dtype, dstream_dtype, dx_dtype, like, dtype)
    part = parts("backward", norm, source, *dtypes)
    unit, input_gradient = norm.unit, norm.input_gradient
    is_sum, with_dstream = source.is_sum, source.has_dstream
    paired = x_dtype is np.uint16
    tame = all(kind is np.uint16 for kind in dtypes[:4])
    x_bytes, residual_bytes, dy_bytes, dstream_bytes, dx_bytes, bytes_ = (
        np.dtype(kind).itemsize for kind in (*dtypes[:5], dtype)
    )

    read_x = reader(x_dtype, dtype, paired=paired)
    read_residual = reader(residual_dtype, dtype, paired=paired)
    read_dy = reader(dy_dtype, dtype, paired=paired)
    read_dstream = reader(dstream_dtype, dtype, paired=paired)
    write_dx = result_writer(dx_dtype, dtype, paired=paired, tame=tame)
    round_like = rounder(like, dtype, tame=tame)
    within = limiter(dtype, paired=paired)
    load, store = buffer(dtype)
    if is_sum:
        read, write = load, store
    else:
        read, write = read_x, writer(x_dtype, dtype, paired=paired, tame=False)
    write_dy = writer(dy_dtype, dtype, paired=paired, tame=False)
    scaled = scaling(part, read, write, dtype)
    scaled_dy = scaling(part, read_dy, write_dy, dtype)
    parameter, read_gain = parameter_reading(dtype, paired=paired)
    add_up = gradient_sum(dtype, paired=paired)

    @part(forceinline=True)
    def products(row, dy, gain, j, end, centred, sums):
        n_a = within(unit(read(row, j, end), *centred), j, end)
        dn_a = read_dy(dy, j, end) * read_gain(gain, j, end)
        j += LANES
        n_b = within(unit(read(row, j, end), *centred), j, end)
        dn_b = read_dy(dy, j, end) * read_gain(gain, j, end)
        return sums[0] + dn_a, sums[1] + dn_b, fma(n_a, dn_a, sums[2]), fma(n_b, dn_b, sums[3])

    @part()
    def means(row, dy, size, gain, mean, r):
        """mean(dn) and mean(n dn)."""
        plain, along, whole = 0.0, 0.0, size // STRIDE * STRIDE
        centred, zero = spread_statistics(mean, r, dtype), spread(dtype(0))
        for start in range(0, whole, BLOCK):
            sums = zero, zero, zero, zero
            for j in range(start, min(start + BLOCK, whole), STRIDE):
                sums = products(row, dy, gain, j, j + STRIDE, centred, sums)
            plain += total(sums[0] + sums[1])
            along += total(sums[2] + sums[3])
        if whole < size:
            sums = products(row, dy, gain, whole, size, centred, (zero, zero, zero, zero))
            plain += total(sums[0] + sums[1])
            along += total(sums[2] + sums[3])
        return dtype(plain / size), dtype(along / size)

    @part()
    def add_sources(x, residual, size, total_row):
        for j in range(0, padded(size), LANES):
            store(total_row, j, size, read_x(x, j, size) + read_residual(residual, j, size))

    @part(forceinline=True)
    def begin(call, i, gain, totals):
        """The row that was normed, and the two means of its gradient."""
        size = call.size
        row = row_at(call.x, call.x_step, call.x_table, i, x_bytes)
        if is_sum:
            step, table = call.residual_step, call.residual_table
            residual = row_at(call.residual, step, table, i, residual_bytes)
            total_row = totals + (i & 1) * padded(size) * bytes_
            add_sources(row, residual, size, total_row)
            row = total_row
        mean, inverse = pair_at(call.saved, i)
        if call.dx == 0 or unit_of(inverse, dtype) != 1.0:
            return row, dtype(0), dtype(0)
        dy = row_at(call.dy, call.dy_step, call.dy_table, i, dy_bytes)
        mean_dn, mean_n_dn = means(row, dy, size, gain, mean, dtype(inverse))
        return row, mean_dn, mean_n_dn

    @part(forceinline=True)
    def gradients_at(j, end, flags, rows, centred, gradient_means, sums):
        (llama, past, fresh), (dw, db) = flags, sums
        row, dy, dstream, gain, dx = rows
        mean_dn, minus_mean_n_dn, inverse = gradient_means
        n = unit(read(row, j, end), *centred)
        dy_j = read_dy(dy, j, end)
        if dx:
            dn = dy_j * read_gain(gain, j, end)
            gradient = input_gradient(n, dn, mean_dn, minus_mean_n_dn, inverse)
            if with_dstream:
                gradient = gradient + read_dstream(dstream, j, end)
            write_dx(dx, j, end, gradient, past)
        if dw:
            if llama:
                n = round_like(n)
            store(dw, j, end, n * dy_j if fresh else fma(n, dy_j, load(dw, j, end)))
        if db:
            store(db, j, end, dy_j if fresh else load(db, j, end) + dy_j)

    @part()
    def gradients(size, flags, rows, mean, r, inverse, mean_dn, mean_n_dn, sums):
        """One pass for whichever of dx, dw and db has an address."""
        whole, centred = size // LANES * LANES, spread_statistics(mean, r, dtype)
        gradient_means = spread(mean_dn), spread(-mean_n_dn), spread(inverse)
        for j in range(0, whole, LANES):
            gradients_at(j, j + LANES, flags, rows, centred, gradient_means, sums)
        if whole < size:
            gradients_at(whole, size, flags, rows, centred, gradient_means, sums)

    @part()
    def finish_scaled(size, flags, rows, mean, inverse, sums, spare):
        """For a row in units of 1/scale. Where that is small, dx takes the scale through dy, since
        1/sqrt(...) may be too large for its dtype although dx is not.
        """
        (row, dy, dstream, gain, dx), scale = rows, unit_of(inverse, dtype)
        row, mean, r = scaled(row, size, scale, spare), mean * scale, dtype(inverse / scale)
        if dx and scale > 1.0:
            larger = scaled_dy(dy, size, scale, spare + padded(size) * bytes_)
            mean_dn, mean_n_dn = means(row, larger, size, gain, mean, r)
            rows = row, larger, dstream, gain, dx
            gradients(size, flags, rows, mean, r, r, mean_dn, mean_n_dn, (0, 0))
            dx = 0
        mean_dn, mean_n_dn = means(row, dy, size, gain, mean, r)
        rows = row, dy, dstream, gain, dx
        gradients(size, flags, rows, mean, r, dtype(inverse), mean_dn, mean_n_dn, sums)

    @part(forceinline=True)
    def finish(call, i, found, fresh, gain, sums, spare):
        size, (row, mean_dn, mean_n_dn) = call.size, found
        flags = call.llama, call.past != 0, fresh
        mean, inverse = pair_at(call.saved, i)
        dy = row_at(call.dy, call.dy_step, call.dy_table, i, dy_bytes)
        dstream = row_at(call.dstream, call.dstream_step, call.dstream_table, i, dstream_bytes)
        dx = row_at(call.dx, size, 0, i, dx_bytes) if call.dx else 0
        rows = row, dy, dstream, gain, dx
        if unit_of(inverse, dtype) == 1.0:
            r = dtype(inverse)
            gradients(size, flags, rows, mean, r, r, mean_dn, mean_n_dn, sums)
        else:
            finish_scaled(size, flags, rows, mean, inverse, sums, spare)

    @part()
    def go_through(call, chunk, gain, sums, totals, spare):
        first = chunk * call.rows_per_chunk
        last = min(first + call.rows_per_chunk, call.rows)
        ahead = call.size * x_bytes <= AHEAD
        row, mean_dn, mean_n_dn = begin(call, first, gain, totals)
        for i in range(first, last):
            found, fresh, more = (row, mean_dn, mean_n_dn), i == first, i + 1 < last
            if more and ahead:
                row, mean_dn, mean_n_dn = begin(call, i + 1, gain, totals)
            finish(call, i, found, fresh, gain, sums, spare)
            if more and not ahead:
                row, mean_dn, mean_n_dn = begin(call, i + 1, gain, totals)

    def kernel(address):
        call = record(address, _CALL)
        size, chunks, row_bytes = call.size, call.chunks, padded(call.size) * bytes_
        space = np.empty(7 * padded(size) + LANES, dtype)
        place = aligned(space)
        totals, spare, sums = place + row_bytes, place + 3 * row_bytes, place + 5 * row_bytes
        gain = parameter(call.weight, call.weight_kind, size, call.unit_offset, place)
        if call.sums:
            sums = call.sums
        after_dw = row_bytes if call.dw else 0
        step = after_dw + (row_bytes if call.db else 0)
        thread = place_of_thread(call, address + _ARRIVED)
        while True:
            chunk = next_chunk(call, thread)
            if chunk < 0:
                break
            dw = sums + chunk * step if call.dw else 0
            db = sums + chunk * step + after_dw if call.db else 0
            go_through(call, chunk, gain, (dw, db), totals, spare)
            if count_one(address + _DONE) == chunks - 1:
                if call.dw:
                    add_up(sums, step, chunks, size, call.dw, call.dw_kind)
                if call.db:
                    add_up(sums + after_dw, step, chunks, size, call.db, call.db_kind)
        hold(space)

    return kernel

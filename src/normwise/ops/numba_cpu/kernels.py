"""The loops over rows, forward and backward, made for each norm from its formulas by entry.

A kernel takes the address of a call (`calls.py`). Threads that are given the same address take
chunks of rows in turn until none is left. What a chunk is depends on the shape alone, and each
chunk has its own sums, so no result depends on the number of threads.

A row is read as it is stored and widened entry by entry, in each pass over it: for bf16 that is
faster than a widened copy. Loops that only sum may be reordered; those that write may not, but for
gradients, where a product and a sum may be rounded once. Flags inside a loop are the same for all
of a row, and the compiler makes a loop of each.

Both makers are one long function: their parts are compiled for the norm and the dtypes they get.
"""

import numpy as np
from numba import carray, njit

from normwise.ops.forms import Form
from normwise.ops.numba_cpu.calls import BackwardCall, CombineCall, ForwardCall
from normwise.ops.numba_cpu.elements import narrow, widen
from normwise.ops.numba_cpu.rows import entries, next_ticket, pointer, row_of, scaled
from normwise.ops.numba_cpu.statistics import BLOCK, SUMMING, split, unit_of

PARTIAL = 64  # rows whose parameter gradients are summed in fp32 before they join an fp64 sum
_FORWARD, _BACKWARD, _COMBINE = map(np.dtype, (ForwardCall, BackwardCall, CombineCall))


def _parts(*names):
    """Compiles the functions that a kernel is made of, under names that say which kernel.

    Two kernels have parts of one name and other contents. Loaded from disk into one process, both
    would be bound to whichever came first.
    """

    def part(*more, **options):
        def compiled(function):
            said = (getattr(name, "__name__", repr(name)) for name in (*names, *more))
            function.__qualname__ = "_".join([function.__name__, *said])
            return njit(error_model="numpy", **options)(function)

        return compiled

    return part


def forward_kernel(norm, form, x_dtype, residual_dtype, y_dtype, stream_dtype, dtype):
    """y, the stream for the form that adds, and where `keep` is set the statistics of each row."""
    part = _parts("forward", norm, form, x_dtype, residual_dtype, y_dtype, stream_dtype, dtype)
    statistics, unit = norm.statistics, norm.unit
    tame = x_dtype == residual_dtype == np.uint16
    adds, is_added = form is Form.ADD, form is Form.OUTPUT

    @part()
    def affine(n, llama, gain, has_bias, bias):
        """g n + b, each step rounded by itself."""
        if llama:
            n = widen(narrow(n, x_dtype, tame), dtype)
        n *= gain
        if has_bias:
            n += bias
        return n

    @part()
    def write(row, mean, r, gain, bias, call, y):
        llama, has_bias = call.llama, call.has_bias
        high, low = split(mean, dtype)
        for j in range(row.size):
            n = unit(widen(row[j], dtype), high, low, r)
            y[j] = narrow(affine(n, llama, gain[j], has_bias, bias[j]), y_dtype, tame)

    @part()
    def write_added(row, mean, r, gain, bias, call, residual, y):
        llama, has_bias = call.llama, call.has_bias
        high, low = split(mean, dtype)
        for j in range(row.size):
            n = unit(widen(row[j], dtype), high, low, r)
            normed = narrow(affine(n, llama, gain[j], has_bias, bias[j]), x_dtype, tame)
            y[j] = narrow(widen(residual[j], dtype) + widen(normed, dtype), y_dtype, tame)

    @part()
    def residual_row(call, i):
        step, table = call.residual_step, call.residual_table
        return row_of(call.residual, step, table, i, call.size, residual_dtype)

    @part()
    def add(x, residual, rounded, stream, total):
        for j in range(x.size):
            value = widen(x[j], dtype) + widen(residual[j], dtype)
            stored = narrow(value, stream_dtype, tame)
            stream[j] = stored
            total[j] = widen(stored, dtype) if rounded else value

    @part()
    def norm_row(row, gain, bias, call, i):
        mean, inverse = statistics(row, call.eps, dtype)
        if call.keep:
            saved = entries(call.saved, 2 * i + 2, np.float64)
            saved[2 * i], saved[2 * i + 1] = mean, inverse
        scale = unit_of(inverse, dtype)
        if scale != 1.0:
            row, mean, inverse = scaled(row, scale, dtype), mean * scale, inverse / scale
        y = row_of(call.y, call.size, 0, i, call.size, y_dtype)
        if is_added:
            write_added(row, mean, dtype(inverse), gain, bias, call, residual_row(call, i), y)
        else:
            write(row, mean, dtype(inverse), gain, bias, call, y)

    def kernel(address):
        call = carray(pointer(address, _FORWARD), (1,))[0]
        size = call.size
        gain = _ordinary(entries(call.gain, size, dtype), dtype)
        bias = _ordinary(entries(call.bias, size, dtype), dtype)
        total = np.empty(size if adds else 0, dtype)
        while True:
            chunk = next_ticket(address)
            if chunk >= call.chunks:
                break
            first = chunk * call.rows_per_chunk
            for i in range(first, min(first + call.rows_per_chunk, call.rows)):
                x = row_of(call.x, call.x_step, call.x_table, i, size, x_dtype)
                if adds:
                    stream = row_of(call.stream, size, 0, i, size, stream_dtype)
                    add(x, residual_row(call, i), call.rounded, stream, total)
                    norm_row(total, gain, bias, call, i)
                else:
                    norm_row(x, gain, bias, call, i)

    return kernel


def backward_kernel(
    norm, source, x_dtype, residual_dtype, dy_dtype, dstream_dtype, dx_dtype, like, dtype
):
    """dx by rows, and for each chunk the sums of n dy and of dy; each only where it is wanted.

    `like` is the dtype to which `llama` rounded n in the forward pass.
    """
    dtypes = (x_dtype, residual_dtype, dy_dtype, dstream_dtype, dx_dtype, like, dtype)
    part = _parts("backward", norm, source, *dtypes)
    unit, input_gradient = norm.unit, norm.input_gradient
    tame = x_dtype == residual_dtype == dy_dtype == dstream_dtype == np.uint16
    is_sum, with_dstream = source.is_sum, source.has_dstream

    @part(fastmath=SUMMING)
    def sums_of_block(row, dy, gain, high, low, r):
        plain, along = dtype(0), dtype(0)
        for j in range(row.size):
            dn = widen(dy[j], dtype) * gain[j]
            plain += dn
            along += dn * unit(widen(row[j], dtype), high, low, r)
        return plain, along

    @part()
    def means(row, dy, gain, high, low, r):
        """mean(dn) and mean(n dn)."""
        plain, along = 0.0, 0.0
        for start in range(0, row.size, BLOCK):
            stop = start + BLOCK
            sums = sums_of_block(row[start:stop], dy[start:stop], gain[start:stop], high, low, r)
            plain += np.float64(sums[0])
            along += np.float64(sums[1])
        return dtype(plain / row.size), dtype(along / row.size)

    def gradient_loop(*, with_dw, with_db):
        """What is wanted beside dx is decided when the loop is compiled, not by an entry."""

        @part(with_dw, with_db, fastmath={"contract"})
        def loop(row, dy, gain, mean, r, inverse, dstream, dx, dw, db):
            high, low = split(mean, dtype)
            mean_dn, mean_n_dn = means(row, dy, gain, high, low, r)
            for j in range(row.size):
                n = unit(widen(row[j], dtype), high, low, r)
                dy_j = widen(dy[j], dtype)
                gradient = input_gradient(n, dy_j * gain[j], mean_dn, mean_n_dn, inverse)
                if with_dstream:
                    gradient += widen(dstream[j], dtype)
                dx[j] = narrow(gradient, dx_dtype, tame)
                if with_dw:
                    dw[j] += n * dy_j
                if with_db:
                    db[j] += dy_j

        return loop

    write_dx = gradient_loop(with_dw=False, with_db=False)
    write_dx_dw = gradient_loop(with_dw=True, with_db=False)
    write_dx_dw_db = gradient_loop(with_dw=True, with_db=True)

    @part(fastmath={"contract"})
    def add_dw(row, dy, mean, r, llama, dw):
        high, low = split(mean, dtype)
        for j in range(row.size):
            n = unit(widen(row[j], dtype), high, low, r)
            if llama:
                n = widen(narrow(n, like, tame), dtype)
            dw[j] += n * widen(dy[j], dtype)

    @part()
    def add_db(dy, db):
        for j in range(dy.size):
            db[j] += widen(dy[j], dtype)

    @part()
    def gradients(row, gain, mean, r, inverse, scale, call, i, dw, db):
        """For a row in units of 1/scale. Where that is small, dx takes the scale through dy, since
        1/sqrt(...) may be too large for its dtype although dx is not.
        """
        size = call.size
        dy = row_of(call.dy, call.dy_step, call.dy_table, i, size, dy_dtype)
        wants_dw, wants_db = call.wants_weight, call.wants_bias
        if call.wants_x:
            step, table = call.dstream_step, call.dstream_table
            dstream = row_of(call.dstream, step, table, i, size, dstream_dtype)
            dx = row_of(call.dx, size, 0, i, size, dx_dtype)
            if scale > 1.0:
                write_dx(row, scaled(dy, scale, dtype), gain, mean, r, r, dstream, dx, dw, db)
            elif not wants_dw or call.llama:
                write_dx(row, dy, gain, mean, r, inverse, dstream, dx, dw, db)
            elif wants_db:
                write_dx_dw_db(row, dy, gain, mean, r, inverse, dstream, dx, dw, db)
                return
            else:
                write_dx_dw(row, dy, gain, mean, r, inverse, dstream, dx, dw, db)
                return
        if wants_dw:
            add_dw(row, dy, mean, r, call.llama, dw)
        if wants_db:
            add_db(dy, db)

    @part()
    def source_row(call, i):
        """The row that was normed."""
        x = row_of(call.x, call.x_step, call.x_table, i, call.size, x_dtype)
        if not is_sum:
            return x
        step, table = call.residual_step, call.residual_table
        residual = row_of(call.residual, step, table, i, call.size, residual_dtype)
        total = np.empty(call.size, dtype)
        for j in range(total.size):
            total[j] = widen(x[j], dtype) + widen(residual[j], dtype)
        return total

    @part()
    def backward_row(call, i, gain, dw, db):
        saved = entries(call.saved, 2 * i + 2, np.float64)
        mean, inverse = saved[2 * i], saved[2 * i + 1]
        row, scale = source_row(call, i), unit_of(inverse, dtype)
        if scale != 1.0:
            row = scaled(row, scale, dtype)
        r = dtype(inverse / scale)
        gradients(row, gain, mean * scale, r, dtype(inverse), scale, call, i, dw, db)

    def kernel(address):
        call = carray(pointer(address, _BACKWARD), (1,))[0]
        size = call.size
        gain = _ordinary(entries(call.gain, size, dtype), dtype)
        dw = np.zeros(size if call.wants_weight else 0, dtype)
        db = np.zeros(size if call.wants_bias else 0, dtype)
        while True:
            chunk = next_ticket(address)
            if chunk >= call.chunks:
                break
            first = chunk * call.rows_per_chunk
            last = min(first + call.rows_per_chunk, call.rows)
            weight_sums = row_of(call.weight_sums, dw.size, 0, chunk, dw.size, np.float64)
            bias_sums = row_of(call.bias_sums, db.size, 0, chunk, db.size, np.float64)
            weight_sums[:] = 0.0
            bias_sums[:] = 0.0
            for start in range(first, last, PARTIAL):
                for i in range(start, min(start + PARTIAL, last)):
                    backward_row(call, i, gain, dw, db)
                _move(dw, weight_sums)
                _move(db, bias_sums)

    return kernel


def combine_kernel(total_dtype):
    """The sums of all chunks, added in their order and rounded once."""

    def kernel(address):
        call = carray(pointer(address, _COMBINE), (1,))[0]
        size = call.size
        total = entries(call.total, size, total_dtype)
        sums = np.zeros(size)
        for chunk in range(call.chunks):
            part = row_of(call.sums, size, 0, chunk, size, np.float64)
            for j in range(size):
                sums[j] += part[j]
        for j in range(size):
            total[j] = narrow(sums[j], total_dtype, False)

    return kernel


@njit(error_model="numpy")
def _move(sums, totals):
    """Adds the sums to the totals and clears them."""
    for j in range(sums.size):
        totals[j] += np.float64(sums[j])
        sums[j] = sums.dtype.type(0)


@njit(error_model="numpy", fastmath=SUMMING)
def _sum_of_zeros(row, dtype):
    """0, or NaN if an entry is NaN or infinite."""
    total = dtype(0)
    for j in range(row.size):
        total += row[j] * dtype(0)
    return total


@njit(error_model="numpy")
def _ordinary(row, dtype):
    """The row, or a copy in which each NaN is the ordinary one, as `narrow` wants it."""
    total = _sum_of_zeros(row, dtype)
    return row if total == total else np.where(np.isnan(row), dtype(np.nan), row)

"""The kernels across forks, worker processes and threads, without Numba, and without a cache."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
import torch

import normwise as nw

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="forks, and counts threads in /proc"
)

PRELUDE = """
import hashlib, os, signal, sys, threading, warnings
import torch
import normwise as nw

def case(norm, rows, size):
    generator = torch.Generator().manual_seed(rows + size)
    x, dy = (torch.randn(rows, size, generator=generator) for _ in range(2))
    weight = torch.randn(size, generator=generator)
    return norm, size, x.requires_grad_(), weight.requires_grad_(), dy

def bits(norm, size, x, weight, dy):
    "The bits of a result and of its gradients, by the kernels."
    with nw.backend("numba"):
        y = norm(x, size, weight)
    tensors = (y.detach(), *torch.autograd.grad(y, (x, weight), dy))
    return [hashlib.sha256(t.numpy().tobytes()).hexdigest() for t in tensors]

def in_a_fork(work):
    "Whether work, which has a minute, comes true in a child."
    sys.stdout.flush()
    child = os.fork()
    if not child:
        signal.alarm(60)
        code = 1
        try:
            code = 0 if work() else 1
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0

def os_threads():
    return len(os.listdir("/proc/self/task"))

def warnings_of(work):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        work()
    return [f"{each.category.__name__}: {each.message}" for each in caught]

def is_right(norm, size, x, weight, dy):
    "Whether the result, and the gradients if there are any, are those of torch's own operations."
    own = {nw.rms_norm: torch.nn.functional.rms_norm, nw.layer_norm: torch.nn.functional.layer_norm}
    results = []
    for f in (norm, own[norm]):
        y = f(x, (size,), weight, eps=1e-5)
        grads = torch.autograd.grad(y, (x, weight), dy) if torch.is_grad_enabled() else ()
        results.append((y, *grads))
    return all(torch.allclose(a, b, 1e-4, 1e-4) for a, b in zip(*results))
"""


def python(script: str, *, flags: tuple[str, ...] = ("-Werror",), **environment: object) -> str:
    """What a script prints in a process of its own, which must end well within two minutes."""
    process = subprocess.run(
        [sys.executable, *flags, "-c", PRELUDE + dedent(script)],
        env=os.environ | {name: str(value) for name, value in environment.items()},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


# Python 3.12 warns of every fork of a process that has threads
FORKS = ("-Werror", "-Wignore:This process:DeprecationWarning")


def package(folder: Path) -> Path:
    """A copy of the package below a folder, without compiled files; where its kernels lie."""
    root = Path(nw.__file__).parent
    shutil.copytree(root, folder / "normwise", ignore=shutil.ignore_patterns("__pycache__"))
    return folder / "normwise" / "ops" / "numba_cpu"


def machine_code(folder: Path) -> dict[str, int]:
    """The files of compiled kernels, and when each was written."""
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*.nbc")}


def test_fork_after_use() -> None:
    """A child, a pool of children and the parent go on with the parent's bits, two threads each."""
    printed = python(
        """
        import multiprocessing

        torch.set_num_threads(2)
        large = case(nw.layer_norm, 4096, 256)
        expected = bits(*large)
        print(in_a_fork(lambda: bits(*large) == expected), bits(*large) == expected)

        def in_pool(i):
            return bits(*large)

        with multiprocessing.get_context("fork").Pool(2) as pool:
            print(pool.map_async(in_pool, range(4)).get(60) == 4 * [expected])
        print(bits(*large) == expected)
        """,
        flags=FORKS,
    )
    assert printed == "True True\nTrue\nTrue\n"


def test_fork_before_use() -> None:
    """A child may be the first to load the kernels, also if torch's threads have worked before."""
    printed = python(
        """
        torch.set_num_threads(2)
        large = case(nw.layer_norm, 4096, 256)

        def child():
            print(*bits(*large), flush=True)
            return True

        print(in_a_fork(child))
        alone = os_threads()
        large[4].clone().mul_(2.0)
        print(os_threads() - alone, in_a_fork(child))
        print(*bits(*large))
        """,
        flags=FORKS,
    )
    first, well, *rest, parent = printed.splitlines()
    assert first == parent and well == "True"
    assert rest == [parent, "1 True"]


def test_workers_of_a_data_loader() -> None:
    """A dataset that norms in two threads, as the parent did before it."""
    printed = python(
        """
        torch.set_num_threads(2)
        bits(*case(nw.rms_norm, 4096, 256))
        x = torch.randn(6, 512, 768)

        class Normed(torch.utils.data.Dataset):
            def __len__(self):
                return len(x)
            def __getitem__(self, i):
                with nw.backend("numba"):
                    return nw.rms_norm(x[i], 768)

        loader = torch.utils.data.DataLoader(
            Normed(), batch_size=None, num_workers=2, timeout=60, multiprocessing_context="fork",
            worker_init_fn=lambda _: torch.set_num_threads(2),
        )
        loaded = list(loader)
        print(len(loaded))
        print(all(torch.equal(y, nw.rms_norm(one, 768)) for y, one in zip(loaded, x)))
        print(torch.allclose(loaded[5], torch.nn.functional.rms_norm(x[5], (768,)), 0, 1e-5))
        """,
        flags=FORKS,
    )
    assert printed == "6\nTrue\nTrue\n"


def test_several_threads_at_once() -> None:
    """Four threads, twenty calls each, give the bits that one gives."""
    printed = python(
        """
        from concurrent.futures import ThreadPoolExecutor

        torch.set_num_threads(2)
        cases = [
            case(norm, *shape)
            for norm in (nw.layer_norm, nw.rms_norm)
            for shape in ((4096, 64), (33, 256), (700, 250), (1, 768), (300, 768))
        ]
        expected = [bits(*each) for each in cases]
        together = threading.Barrier(4)

        def work(first):
            together.wait(60)
            turns = [(first * 3 + i) % len(cases) for i in range(20)]
            return [bits(*cases[i]) == expected[i] for i in turns]

        with ThreadPoolExecutor(4) as threads:
            print(sum(sum(right) for right in threads.map(work, range(4))))
        """
    )
    assert printed == "80\n"


def test_first_call_in_several_threads(tmp_path: Path) -> None:
    """Each kernel is compiled while others ask for it."""
    printed = python(
        """
        from concurrent.futures import ThreadPoolExecutor

        torch.set_num_threads(2)
        cases = 2 * [case(norm, 700, 256) for norm in (nw.layer_norm, nw.rms_norm)]
        together = threading.Barrier(4)

        def work(one):
            together.wait(60)
            with torch.no_grad(), nw.backend("numba"):
                return is_right(*one)

        with ThreadPoolExecutor(4) as threads:
            print(*threads.map(work, cases))
        """,
        NUMBA_CACHE_DIR=tmp_path,
    )
    assert printed == "True True True True\n"
    assert len(machine_code(tmp_path)) == 2


def test_import_is_light() -> None:
    """Neither the package nor a module loads the compiler or starts a thread."""
    printed = python(
        """
        before = os_threads(), threading.active_count()
        nw.RMSNorm(8)
        nw.LayerNorm(8)
        print({"numba", "llvmlite"} & set(sys.modules))
        print((os_threads(), threading.active_count()) == before)
        """
    )
    assert printed == "set()\nTrue\n"


def test_threads_that_work() -> None:
    """Small calls and one thread need no other; torch's number is used, and no setting changed."""
    printed = python(
        """
        import numba

        def settings():
            config = {name: getattr(numba.config, name) for name in dir(numba.config)}
            return {name: value for name, value in config.items() if name.isupper()}

        def added(threads, one):
            "Threads that a call starts, and torch's number after it."
            torch.set_num_threads(threads)
            before = os_threads()
            bits(*one)
            return os_threads() - before, torch.get_num_threads()

        before = settings(), threading.active_count()
        print(added(2, case(nw.rms_norm, 4, 8)))
        print(added(1, case(nw.rms_norm, 4096, 256)))
        print(added(3, case(nw.rms_norm, 4096, 256)))
        print(len(before[0]) > 50, (settings(), threading.active_count()) == before)
        try:
            numba.threading_layer()
        except ValueError as error:
            print(error)
        """,
        OMP_NUM_THREADS=1,
    )
    assert printed == ("(0, 2)\n(0, 1)\n(2, 3)\nTrue True\nThreading layer is not initialized.\n")


def test_without_numba() -> None:
    """Plain PyTorch runs, says so once with what to do, and "numba" by name is an error."""
    printed = python(
        """
        sys.modules["numba"] = None
        one = case(nw.rms_norm, 33, 256)
        right = []
        for line in warnings_of(lambda: right.extend(is_right(*one) for _ in range(3))):
            print(line)
        print(right, *nw.which_backend(one[2]), sep="; ")
        try:
            with nw.backend("numba"):
                nw.rms_norm(one[2], 256)
        except nw.NormwiseError as error:
            print(type(error).__name__, error, sep=": ")
        """
    )
    reason = "Numba cannot be imported (import of numba halted; None in sys.modules)"
    assert printed.splitlines() == [
        f"RuntimeWarning: {reason}: normwise runs its norms in plain PyTorch, which takes several "
        "times as long. Run: pip install numba",
        f"[True, True, True]; reference; {reason}",
        f"BackendUnavailable: The numba backend cannot run this call: {reason}. "
        'Use nw.backend("auto"), which would run the reference here.',
    ]


WORKS_WITHOUT_A_CACHE = """
right = []
torch.set_grad_enabled(False)
cases = [case(norm, 9, 64) for norm in (nw.layer_norm, nw.rms_norm)]
for line in warnings_of(lambda: right.extend(is_right(*each) for each in cases)):
    print(line)
print(right, nw.which_backend(torch.zeros(4)).backend)
"""


def one_warning(printed: str) -> str:
    """The warning that no kernel can be kept, after which everything was right."""
    *warned, right = printed.splitlines()
    assert right == "[True, True] numba"
    assert len(warned) == 1, warned
    begin = "RuntimeWarning: normwise cannot keep its compiled kernels: "
    assert warned[0].startswith(begin)
    assert warned[0].endswith(" Set NUMBA_CACHE_DIR to a folder that can be written.")
    return warned[0]


def test_no_folder_can_be_written(tmp_path: Path) -> None:
    """Kernels are made anew, said once for all of them."""
    file = package(tmp_path) / "__pycache__"
    file.touch()
    printed = python(
        WORKS_WITHOUT_A_CACHE,
        PYTHONPATH=tmp_path,
        PYTHONDONTWRITEBYTECODE=1,
        NUMBA_CACHE_DIR=file / "a",
        XDG_CACHE_HOME=file / "b",
        HOME=file / "c",
    )
    assert "found no folder" in one_warning(printed)


def test_full_folder(tmp_path: Path) -> None:
    """A disk without space costs the time, not the call, and is said once."""
    full = """
    from numba.core.caching import IndexDataCacheFile

    def save(self, key, data):
        raise OSError(28, "No space left on device", f"{self._index_path}.tmp.{id(key)}")

    IndexDataCacheFile.save = save
    """
    printed = python(dedent(full) + WORKS_WITHOUT_A_CACHE, NUMBA_CACHE_DIR=tmp_path)
    assert "No space left on device" in one_warning(printed)
    assert not machine_code(tmp_path)


def test_kernels_are_kept_and_follow_their_sources(tmp_path: Path) -> None:
    """The next process compiles nothing, until some file of the kernels is another."""
    sources, kept = package(tmp_path / "source"), tmp_path / "kept"
    script = "print(nw.rms_norm(torch.tensor([3.0, 4.0]), 2, eps=0.0).tolist(), nw.__file__)"

    def run() -> dict[str, int]:
        printed = python(script, PYTHONPATH=sources.parents[2], NUMBA_CACHE_DIR=kept)
        assert printed.startswith("[0.848528") and f"{sources.parents[1]}/" in printed
        return machine_code(kept)

    first = run()
    assert len(first) == 1
    assert run() == first
    with (sources / "statistics.py").open("a") as file:
        file.write("# another text\n")
    changed = run()
    assert len(changed) == 2 and first.items() < changed.items()


def test_pool_where_torch_has_no_team() -> None:
    """Any number of threads of the pool gives the same bits, and a fork finds its way."""
    printed = python(
        """
        from normwise.ops.numba_cpu import threads

        threads._team = lambda: None
        one = case(nw.layer_norm, 4096, 256)
        torch.set_num_threads(1)
        expected = bits(*one)
        print(threading.active_count())
        for n in (2, 3):
            torch.set_num_threads(n)
            same = [bits(*one) == expected for _ in range(30)]
            print(all(same), threading.active_count() > 1)
        print(in_a_fork(lambda: bits(*one) == expected), bits(*one) == expected)
        """,
        flags=FORKS,
    )
    assert printed == "1\nTrue True\nTrue True\nTrue True\n"


def test_a_library_in_a_folder_with_a_space(tmp_path: Path) -> None:
    """The path of torch's OpenMP library is all that follows the fifth field of a map."""
    folder = tmp_path / "of torch"
    folder.mkdir()
    own = next((Path(torch.__file__).parent / "lib").glob("libgomp*"))
    library = shutil.copy(own, folder / own.name)
    maps = tmp_path / "maps"
    maps.write_text(f"7f0000000000-7f0000001000 r-xp 00000000 08:01 123456    {library}\n")
    printed = python(
        f"""
        from normwise.ops.numba_cpu import threads

        one = case(nw.layer_norm, 4096, 256)
        expected = bits(*one)
        threads._MAPS = threads.Path({str(maps)!r})
        threads._team.cache_clear()
        print(bits(*one) == expected, threads._team() is not None)
        """
    )
    assert printed == "True True\n"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="an x86 processor without extensions")
def test_code_for_another_processor_gives_the_same_bits() -> None:
    """Neither the width of registers nor the want of FMA or F16C changes a bit or ends it."""
    script = "print(bits(*case(nw.rms_norm, 300, 100)))"
    assert python(script, NUMBA_CPU_NAME="generic") == python(script)

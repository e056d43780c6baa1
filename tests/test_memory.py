"""Memory that cannot be had is a MemoryError that says how much, and work buffers stay small beside inputs and outputs."""

import textwrap

import pytest
from helpers.processes import python

resource = pytest.importorskip("resource")

LIMITED = """
    import resource, sys
    import torch, octavo
    from octavo.ops.linear import integer_linear, packed_linear
    torch.set_num_threads(1)
    octavo._core.set_num_threads(2)
    def used():
        return int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    def limit(more):
        resource.setrlimit(resource.RLIMIT_AS, (used() + more, resource.RLIM_INFINITY))
    def small(text, n, k):
        return octavo.encode(torch.randn(n, k), text)
"""


def limited(body):
    return python(textwrap.dedent(LIMITED) + textwrap.dedent(body), timeout=300)


CALLS = {
    "a product": "call = lambda w=small('mxint8', 64, 4096), x=torch.zeros(20000, 4096).bfloat16(): packed_linear(x, w)",
    "a product of bytes": "call = lambda w=small('mxint8', 4, 2**24), x=torch.zeros(4, 2**24): packed_linear(x, w)",
    "a product of floats": "call = lambda w=small('fp32', 2, 2**23), x=torch.zeros(16, 2**23).half(): packed_linear(x, w)",
    "an integer product": "call = lambda w=small('int8', 8, 4096), x=torch.zeros(60000, 4096).bfloat16(): "
    "integer_linear(x, w, 'int8')",
    "an integer product of narrow codes": "call = lambda w=small('int4', 8, 4096), x=torch.zeros(60000, 4096).half(): "
    "integer_linear(x, w, 'int4:channel')",
    "another axis": "call = lambda x=torch.zeros(2**13, 2**14), out=torch.zeros(2**13, 2**14): "
    "octavo.quantize(x, 'mxint8', axis=0, out=out)",
}


@pytest.mark.slow
@pytest.mark.parametrize("what", CALLS)
def test_memory_that_is_short_is_an_error_with_its_bytes(what):
    """The limit is raised step by step, so that each allocation in turn is the one that fails."""
    done = limited(
        f"""
        {CALLS[what]}
        outcomes = set()
        for more in [2**20 * s for s in (4, 24, 48, 96, 144, 192, 240, 320)]:
            limit(more)
            try:
                call()
                outcomes.add("done")
            except MemoryError as error:
                assert "out of memory: " in str(error) and "bytes" in str(error), error
                outcomes.add("refused")
            except RuntimeError as error:  # PyTorch's own, for the output
                assert "allocate" in str(error), error
                outcomes.add("torch")
            except octavo.SettingError as error:
                assert "threads" in str(error), error
                outcomes.add("threads")
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        call()
        print(sorted(outcomes))
        """
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "refused" in done.stdout, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("text", ["mxint8", "fp32", "int8:channel"])
def test_many_rows_need_little_beside_their_result(text):
    """A million rows of 32 inputs: work buffers are those of some thousand rows."""
    done = limited(
        f"""
        w, x = small({text!r}, 256, 32), torch.randn(1_000_000, 32).bfloat16()
        packed_linear(x[:5000], w)  # threads and tables
        limit(2 * 256 * 1_000_000 + 128 * 2**20)
        y = packed_linear(x, w)
        part = packed_linear(x[-5000:], w)
        assert torch.equal(y[-5000:], part)
        print("done")
        """
    )
    assert done.stdout.strip() == "done", done.stderr[-2000:]

"""The native core built for 64-bit ARM: how its loops look, and what it computes under qemu.

What is not there is skipped; `make aarch64` fetches it.
"""

import pytest

import aarch64

LOOP = """
0000000000000c00 <void fedfilt::(anonymous namespace)::tile<1l, 2l>(fedfilt::Product const&, long, long)>:
     c00:\tldp\tq1, q2, [x3], #32
     c04:\tldr\ts0, [x1, x2, lsl #2]
     c08:\tfmla\tv4.4s, v1.4s, v0.s[0]
     c0c:\t{}
     c10:\tb.ne\tc00 <void fedfilt::(anonymous namespace)::tile<1l, 2l>(fedfilt::Product const&, long, long)>
     c14:\tret
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    if aarch64.compiler() is None:
        pytest.skip("no C++ compiler for aarch64; `make aarch64` fetches one")
    folder = tmp_path_factory.mktemp("aarch64") / "fedfilt"
    aarch64.build(folder)
    return folder


@pytest.mark.parametrize(
    ("instruction", "fault"),
    [
        ("fmla\tv5.4s, v2.4s, v0.s[0]", None),
        ("fmadd\ts5, s2, s0, s5", "1 scalar instructions and 0 uses of the stack"),
        ("str\tq4, [sp, #16]", "0 scalar instructions and 1 uses of the stack"),
        ("nop", "1 multiply-adds instead of 1 x 2"),
    ],
)
def test_a_slow_loop_is_found(instruction, fault):
    found = [one for one in aarch64.faults(LOOP.format(instruction)) if "has no loop" not in one]
    assert any(fault in one for one in found) if fault else not found


@pytest.mark.slow(8)
def test_loops_use_vectors_and_no_stack(built):
    assert aarch64.faults(aarch64.disassembly(built)) == []


@pytest.mark.slow(30)
def test_an_emulated_cpu_computes_what_numpy_does(built):
    if not (aarch64.emulator() and aarch64.interpreter() and aarch64.SITE.exists()):
        pytest.skip("no qemu or no arm64 Python; `make aarch64` fetches them")
    done = aarch64.native_tests(built / "src", "test_numpy.py", "-k", "not batch1")
    assert done.returncode == 0, done.stdout + done.stderr

"""Triton's kernels compile for GPUs that are not here: what the interpreter lets pass, a compiler refuses."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.oracle


@pytest.mark.slow
def test_every_kernel_compiles_for_hopper_without_spilling() -> None:
    """Machine code for compute capability 9.0: attention multiplies on matrix units, and no register spills."""
    program = [sys.executable, "-m", "support.dry_gpu", "--capability", "90"]
    result = subprocess.run(program, cwd="tests", capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    kernels = [json.loads(line) for line in result.stdout.splitlines()]
    names = {kernel["name"] for kernel in kernels}
    attention = {"_attend_parts", "_attend_prefix", "_merge_parts", "_attend_tiles"}
    products = {"_fixed_product", "_one_row", "_rows", "_dequantise", "_quantise_rows", "_scaled_rows", "_expert_rows"}
    assert names == attention | products | {"_rms_norm", "_gate", "_rotate_and_store", "adjust", "weigh", "draw"}
    assert not [kernel for kernel in kernels if kernel["spilled_bytes"]]
    instructions = {(kernel["name"], kernel["matrix"]) for kernel in kernels if kernel["matrix"].endswith("MMA")}
    assert instructions >= {
        ("_attend_tiles", "HGMMA"),
        ("_attend_prefix", "HGMMA"),
        ("_attend_parts", "HMMA"),
        ("_rows", "HGMMA"),
        ("_scaled_rows", "QGMMA"),
        ("_scaled_rows", "IGMMA"),
        ("_fixed_product", "HGMMA"),
    }

"""Conjugate gradients in f32 with products of several accuracies: residuals as iterations go on, time a product.

pip install "tilewright[torch]"
python examples/conjugate_gradients.py        # needs an NVIDIA GPU; the pieces need Hopper
"""

import sys

import tilewright as tw
from tilewright.extras import require
from tilewright.runtime.driver import gpu_problem

try:
    torch = require("torch", "Solving on a GPU")
except tw.TilewrightError as missing:
    sys.exit(str(missing))
if not torch.cuda.is_available():
    sys.exit(f"This example solves on a GPU, and there is none to use: {gpu_problem() or 'PyTorch sees none'}")

SIZE, RIGHT_SIDES, ITERATIONS, EVERY = 4096, 64, 300, 50
CONDITION = 1e3
PRECISIONS = ("default", "f32_emulated", "f16x3", "bf16x6", "tf32x3", "bf16x3", "tf32")

torch.manual_seed(0)
directions, _ = torch.linalg.qr(torch.randn(SIZE, SIZE, device="cuda", dtype=torch.float64))
spectrum = torch.logspace(0, -torch.log10(torch.tensor(CONDITION)).item(), SIZE, device="cuda", dtype=torch.float64)
matrix = (directions * spectrum) @ directions.t()
matrix = ((matrix + matrix.t()) / 2).float()  # symmetric, positive definite: rows of the unknown can multiply it
exact = torch.randn(RIGHT_SIDES, SIZE, device="cuda", dtype=torch.float64)
right = (exact @ matrix.double()).float()


def product(precision):
    """x -> x @ matrix; the pieces of the matrix are made once."""
    if precision in ("default", "tf32"):
        return lambda x: tw.matmul(x, matrix, precision=precision)
    prepared = tw.prepare(matrix, precision=precision)
    return lambda x: tw.matmul(x, prepared)


def solve(multiply):
    """The relative residuals, in float64, at every so many iterations; each row is a system of its own."""
    x, rest = torch.zeros_like(right), right.clone()
    step, norm = rest.clone(), (rest * rest).sum(1, keepdim=True)
    found = []
    for iteration in range(ITERATIONS + 1):
        if iteration % EVERY == 0:
            left = x.double() @ matrix.double() - right.double()
            found.append((left.norm() / right.double().norm()).item())
        image = multiply(step)
        length = norm / (step * image).sum(1, keepdim=True)
        x, rest = x + length * step, rest - length * image
        before, norm = norm, (rest * rest).sum(1, keepdim=True)
        step = rest + norm / before * step
    return found


def milliseconds(multiply):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(20):
        multiply(right)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 20


print(f"{SIZE} unknowns, {RIGHT_SIDES} right sides, condition {CONDITION:g}; relative residual after iterations")
print(f"{'precision':>12}" + "".join(f"{n:>10}" for n in range(0, ITERATIONS + 1, EVERY)) + "   ms a product")
for name in PRECISIONS:
    try:
        multiply = product(name)
        residuals = solve(multiply)
    except tw.TilewrightError as refused:
        print(f"{name:>12}  {refused}")
        continue
    print(f"{name:>12}" + "".join(f"{one:10.1e}" for one in residuals) + f"{milliseconds(multiply):15.3f}")

"""A transformer of PyTorch's own modules, its products by cuBLAS and by tilewright: same gradients, time a step.

pip install "tilewright[torch]"
python examples/route_a_model.py        # needs an NVIDIA GPU
"""

import statistics
import sys
from contextlib import nullcontext

import tilewright as tw
from tilewright.extras import require
from tilewright.runtime.driver import gpu_problem

try:
    torch = require("torch", "Routing a model")
except tw.TilewrightError as missing:
    sys.exit(str(missing))
if not torch.cuda.is_available():
    sys.exit(f"This example times a model on a GPU, and there is none to use: {gpu_problem() or 'PyTorch sees none'}")


class LanguageModel(torch.nn.Module):
    def __init__(self, words=32000, width=1024, heads=16, layers=4):
        super().__init__()
        self.embedding = torch.nn.Embedding(words, width)
        layer = torch.nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = torch.nn.Linear(width, words)

    def forward(self, text):
        mask = torch.nn.Transformer.generate_square_subsequent_mask(text.shape[1], text.device, self.head.weight.dtype)
        return self.head(self.layers(self.embedding(text), mask=mask, is_causal=True))


torch.manual_seed(0)
model = LanguageModel().to("cuda", torch.bfloat16)
text = torch.randint(32000, (8, 513), device="cuda")


def step(products):
    """The loss and the milliseconds of one forward and backward pass; gradients stay in the model."""
    model.zero_grad()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    with products:
        logits = model(text[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), text[:, 1:].flatten())
        loss.backward()
    end.record()
    end.synchronize()
    return loss.item(), begin.elapsed_time(end)


kinds = {"cuBLAS": nullcontext(), "tilewright": tw.route_torch()}
losses, gradients = {}, {}
for name, products in kinds.items():
    losses[name], _ = step(products)  # compiles the kernels that are missing
    gradients[name] = torch.cat([parameter.grad.flatten().float() for parameter in model.parameters()])
apart = (gradients["tilewright"] - gradients["cuBLAS"]).norm() / gradients["cuBLAS"].norm()
print(f"loss: {losses['cuBLAS']:.5f} by cuBLAS, {losses['tilewright']:.5f} by tilewright")
print(f"gradients: {apart:.2%} apart (bfloat16 rounds by up to {2**-8:.2%})")

times = {name: [] for name in kinds}
for _ in range(20):
    for name, products in kinds.items():
        times[name].append(step(products)[1])
for name in kinds:
    print(f"{name}: {statistics.median(times[name]):.2f} ms a step")

"""Training steps of a small transformer in f32, its products as f32 arithmetic, emulated f32 and tf32: losses, weights.

pip install "tilewright[torch]"
python examples/train_in_f32.py        # needs an NVIDIA GPU; the pieces need Hopper
"""

import sys
import time

import tilewright as tw
from tilewright.extras import require
from tilewright.runtime.driver import gpu_problem

try:
    torch = require("torch", "Training a model")
except tw.TilewrightError as missing:
    sys.exit(str(missing))
if not torch.cuda.is_available():
    sys.exit(f"This example trains on a GPU, and there is none to use: {gpu_problem() or 'PyTorch sees none'}")

WORDS, WIDTH, HEADS, LAYERS, LENGTH, BATCH, STEPS, EVERY = 512, 512, 8, 4, 128, 32, 100, 20
PRECISIONS = ("default", "f32_emulated", "bf16x6", "bf16x3", "tf32")


class LanguageModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(WORDS, WIDTH)
        layer = torch.nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = torch.nn.Linear(WIDTH, WORDS)

    def forward(self, text):
        mask = torch.nn.Transformer.generate_square_subsequent_mask(text.shape[1], text.device)
        return self.head(self.layers(self.embedding(text), mask=mask, is_causal=True))


def texts():
    """Batches of sequences that repeat a pattern of drawn length, the same in every run."""
    generator = torch.Generator(device="cuda").manual_seed(1)
    for _ in range(STEPS + 1):
        period = int(torch.randint(4, 12, (), generator=generator, device="cuda"))
        pattern = torch.randint(WORDS, (BATCH, period), generator=generator, device="cuda")
        yield pattern.repeat(1, LENGTH // period + 2)[:, : LENGTH + 1]


def train(precision):
    """The losses at every so many steps, the weights, and the milliseconds of a step behind the first ten."""
    torch.manual_seed(0)
    model = LanguageModel().to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    losses, begin = [], 0.0
    with tw.route_torch(precision=precision):
        for step, text in enumerate(texts()):
            if step == 10:
                torch.cuda.synchronize()
                begin = time.perf_counter()
            loss = torch.nn.functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % EVERY == 0:
                losses.append(loss.item())
    torch.cuda.synchronize()
    each = (time.perf_counter() - begin) / (STEPS - 9) * 1e3
    return losses, torch.cat([parameter.detach().flatten().double() for parameter in model.parameters()]), each


found = {}
print(f"{'precision':>14}" + "".join(f"{n:>9}" for n in range(0, STEPS + 1, EVERY)) + "   weights apart   ms a step")
for name in PRECISIONS:
    try:
        losses, weights, each = train(name)
    except tw.TilewrightError as refused:
        print(f"{name:>14}  {refused}")
        continue
    found[name] = weights
    apart = ((weights - found["default"]).norm() / found["default"].norm()).item()
    print(f"{name:>14}" + "".join(f"{one:9.4f}" for one in losses) + f"{apart:16.1e}{each:12.2f}")

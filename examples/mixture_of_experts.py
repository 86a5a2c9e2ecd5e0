"""Two layers of a mixture of gated experts, forward and backward: by tilewright, by plain PyTorch, and, where it is
installed, by transformers' own module, with the same random weights.

pip install "tilewright[torch]"         # and transformers, to be held against its Mixtral layer
python examples/mixture_of_experts.py   # on a GPU if there is one; else tilewright computes with PyTorch
"""

import statistics
import sys
import warnings

import tilewright as tw
from tilewright.extras import require

try:
    torch = require("torch", "A mixture of experts")
except tw.TilewrightError as missing:
    sys.exit(str(missing))

ON_GPU = torch.cuda.is_available()
DEVICE, DTYPE = ("cuda", torch.bfloat16) if ON_GPU else ("cpu", torch.float32)
TOKENS, WIDTH, INNER, EXPERTS, TOP = (4096, 2048, 1408, 64, 6) if ON_GPU else (96, 64, 48, 8, 2)


def dispatched(chosen):
    """Where tokens go: `rows`, the token of each row, sorted by expert; `ends`, the last row of each expert and one;
    `places`, the row of each choice of a token. The host learns none of them, so that a CUDA graph can record it."""
    experts, order = chosen.flatten().sort(stable=True)
    places = torch.empty_like(order)
    places[order] = torch.arange(order.numel(), device=order.device)
    ends = torch.searchsorted(experts, torch.arange(EXPERTS, device=order.device), right=True)
    rows = order // chosen.shape[1]
    return rows.int(), ends.int(), places.reshape(chosen.shape).int()


class Experts(torch.nn.Module):
    """`down[e] @ (silu(gate[e] @ x) * (up[e] @ x))` for the experts e of each token x, summed with their weights."""

    def __init__(self):
        super().__init__()
        self.gate_up = torch.nn.Parameter(torch.randn(EXPERTS, 2 * INNER, WIDTH) * WIDTH**-0.5)
        self.down = torch.nn.Parameter(torch.randn(EXPERTS, WIDTH, INNER) * INNER**-0.5)

    def forward(self, x, chosen, weights):
        rows, ends, places = dispatched(chosen)
        gate, up = tw.grouped_matmul(x, self.gate_up.mT, offsets=ends, rows=rows).chunk(2, dim=-1)
        hidden = torch.nn.functional.silu(gate) * up
        found = tw.grouped_matmul(hidden, self.down.mT, offsets=ends)
        return tw.combine_rows(found, places, weights)


class PlainExperts(Experts):
    """The same, expert by expert."""

    def forward(self, x, chosen, weights):
        found = torch.zeros_like(x, dtype=torch.float32)
        for expert in range(EXPERTS):
            token, choice = (chosen == expert).nonzero(as_tuple=True)
            gate, up = (x[token] @ self.gate_up[expert].mT).chunk(2, dim=-1)
            one = (torch.nn.functional.silu(gate) * up) @ self.down[expert].mT
            found.index_add_(0, token, one.float() * weights[token, choice, None])
        return found.to(x.dtype)


class Layer(torch.nn.Module):
    """Tokens choose `TOP` experts each; what those make of them is added."""

    def __init__(self, experts):
        super().__init__()
        self.norm = torch.nn.RMSNorm(WIDTH)
        self.router = torch.nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = experts

    def forward(self, x):
        normed = self.norm(x)
        weights, chosen = self.router(normed).float().softmax(dim=-1).topk(TOP, dim=-1)
        return x + self.experts(normed, chosen, weights / weights.sum(dim=-1, keepdim=True))


def model_of(kind, layers=2):
    torch.manual_seed(0)
    return torch.nn.Sequential(*(Layer(kind()) for _ in range(layers))).to(DEVICE, DTYPE)


def stepped(model, x):
    """The result of a model, and the gradients of its tokens and parameters; all as one vector each."""
    x = x.detach().requires_grad_()
    y = model(x)
    gradients = torch.autograd.grad(y.float().square().mean(), (x, *model.parameters()))
    return y.detach().float(), torch.cat([one.flatten().float() for one in gradients])


def apart(ours, theirs):
    return max(float((own - other).norm() / other.norm()) for own, other in zip(ours, theirs, strict=True))


def beside_transformers(x):
    """The distance of one layer of experts from transformers' Mixtral block with the same weights; None without it."""
    try:
        from transformers import MixtralConfig
        from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock
    except ImportError:
        return None
    config = MixtralConfig(
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_local_experts=EXPERTS,
        num_experts_per_tok=TOP,
        hidden_act="silu",
    )
    block = MixtralSparseMoeBlock(config).to(DEVICE, DTYPE)
    if not hasattr(block.experts, "gate_up_proj"):  # before version 5 each expert is a module
        return None
    ours = Experts().to(DEVICE, DTYPE)
    parameters = (ours.gate_up, block.experts.gate_up_proj), (ours.down, block.experts.down_proj)
    with torch.no_grad():
        for own, other in parameters:
            other.copy_(own)
        block.gate.weight.normal_(std=WIDTH**-0.5)
    weights, chosen = (x @ block.gate.weight.mT).float().softmax(dim=-1).topk(TOP, dim=-1)
    weights = (weights / weights.sum(dim=-1, keepdim=True)).detach()
    y, expected = ours(x, chosen, weights), block(x[None])
    expected = (expected[0] if isinstance(expected, tuple) else expected).reshape(y.shape)
    of_ours = torch.autograd.grad(y.float().square().mean(), (ours.gate_up, ours.down))
    of_theirs = torch.autograd.grad(expected.float().square().mean(), [other for _, other in parameters])
    return apart((y.detach(), *of_ours), (expected.detach(), *of_theirs))


warnings.filterwarnings("ignore", message="tilewright")
tokens = torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(1)).to(DEVICE, DTYPE)
models = {"plain PyTorch": model_of(PlainExperts), "tilewright": model_of(Experts)}
found = {name: stepped(model, tokens) for name, model in models.items()}
distance = apart(found["tilewright"], found["plain PyTorch"])
print(f"results and gradients: {distance:.2e} from plain PyTorch ({DTYPE} rounds by {torch.finfo(DTYPE).eps / 2:.1e})")
again = stepped(models["tilewright"], tokens)
print(f"the same bits again: {all(torch.equal(a, b) for a, b in zip(again, found['tilewright'], strict=True))}")
beside = beside_transformers(tokens)
print(f"one layer from transformers' Mixtral: {'not installed' if beside is None else f'{beside:.2e}'}")

if ON_GPU:
    times = {name: [] for name in models}
    for _ in range(10):
        for name, model in models.items():
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            stepped(model, tokens)
            end.record()
            end.synchronize()
            times[name].append(begin.elapsed_time(end))
    for name, taken in times.items():
        print(f"{name:14} {statistics.median(taken):8.2f} ms a step")

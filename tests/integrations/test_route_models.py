"""Models of PyTorch's own modules, routed: forward and backward as without, and as many products as they have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
from tilewright import route_torch  # noqa: E402

# What torch.compile imports and does warns of itself, differently in each version.
pytestmark = [pytest.mark.usefixtures("gpu"), pytest.mark.filterwarnings("ignore")]

knows_modes = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6),
    reason="torch.compile knows modes of functions since PyTorch 2.6",
)

WIDTH, HEADS, LAYERS = 16, 2, 2
PRODUCTS = LAYERS * 4 + 1
"""In each layer one into attention, one out of it, and two behind it; and the last, into words."""


def products(gpu: Any) -> int:
    """Launches, but for second ones that add up parts of a sum."""
    return sum(not name.startswith("reduce") for name in gpu.launches)


class Transformer(torch.nn.Module):  # type: ignore[misc]
    """A small language model."""

    def __init__(self, words: int = 11) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(words, WIDTH)
        layer = torch.nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.out = torch.nn.Linear(WIDTH, words)

    def forward(self, text: Any) -> Any:
        mask = torch.nn.Transformer.generate_square_subsequent_mask(text.shape[1])
        return self.out(self.layers(self.words(text), mask=mask, is_causal=True))


def trained_once(model: Any, call: Callable[..., Any], *given: Any) -> tuple[Any, list[Any]]:
    """The result, and the gradients of all parameters."""
    result = call(*given)
    return result.detach(), torch.autograd.grad(result.float().square().mean(), list(model.parameters()))


def assert_same(ours: Any, theirs: Any, tolerance: float = 1e-4) -> None:
    for own, other in zip((ours[0], *ours[1]), (theirs[0], *theirs[1]), strict=True):
        assert own.dtype == other.dtype
        scale = float(other.abs().max()) + 1e-6
        assert float((own - other).abs().max()) <= tolerance * scale


def test_a_transformer_forward_and_backward(gpu: Any) -> None:
    model, text = Transformer(), torch.randint(11, (3, 5))
    expected = trained_once(model, model, text)
    with route_torch():
        model(text)
        assert products(gpu) == PRODUCTS
        gpu.launches.clear()
        result = trained_once(model, model, text)
    assert products(gpu) == 3 * PRODUCTS
    assert_same(result, expected)


def test_a_transformer_trains_to_the_same_loss() -> None:
    text = torch.randint(11, (3, 6))
    losses = []
    for routed in (False, True):
        torch.manual_seed(3)
        model = Transformer()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            if routed:
                with route_torch():
                    logits = model(text[:, :-1])
            else:
                logits = model(text[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
            loss.backward()
            optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert losses[1] < 2.3


def test_a_transformer_that_infers_is_routed_too(gpu: Any) -> None:
    """Without gradients PyTorch takes its own fast path through a whole layer, with more products in it."""
    model, text = Transformer().eval(), torch.randint(11, (3, 5))
    with torch.inference_mode():
        expected = model(text)
        with route_torch() as routed:
            result = model(text)
    assert products(gpu) >= PRODUCTS and routed.calls == products(gpu)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("kind", ["self", "cross", "widths", "bias"])
def test_attention(kind: str, weights: bool, gpu: Any) -> None:
    widths = {"kdim": 8, "vdim": 12} if kind == "widths" else {}
    attention = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, add_bias_kv=kind == "bias", **widths)
    query = torch.randn(3, 5, WIDTH, requires_grad=True)
    key, value = (torch.randn(3, 7, widths.get(name, WIDTH), requires_grad=True) for name in ("kdim", "vdim"))
    given = (query, query, query) if kind == "self" else (query, key, key if kind == "cross" else value)

    def run() -> Any:
        result, seen = attention(*given, need_weights=weights)
        return torch.cat([result.flatten(), seen.flatten()]) if weights else result

    expected = trained_once(attention, run)
    gpu.launches.clear()
    with route_torch():
        result = trained_once(attention, run)
    forward = {"self": 1, "cross": 2, "widths": 3, "bias": 3}[kind] + 1 + 2 * weights
    assert products(gpu) > forward
    assert_same(result, expected)
    gpu.launches.clear()
    with route_torch():
        run()
    assert products(gpu) == forward


def test_a_transformer_under_autocast(gpu: Any) -> None:
    model, text = Transformer(), torch.randint(11, (3, 5))
    with torch.autocast("cpu", torch.bfloat16):
        expected = trained_once(model, model, text)
        gpu.launches.clear()
        with route_torch():
            result = trained_once(model, model, text)
    assert products(gpu) == 3 * PRODUCTS
    assert result[0].dtype == torch.bfloat16
    assert_same(result, expected, tolerance=0.05)


@knows_modes
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_a_compiled_model_called_within_the_block(backend: str, gpu: Any) -> None:
    model, text = Transformer(), torch.randint(11, (3, 5))
    call = torch.compile(model, backend=backend, fullgraph=True)
    expected = trained_once(model, call, text)
    assert not gpu.launches
    with route_torch():
        result = trained_once(model, call, text)
    assert products(gpu) == 3 * PRODUCTS
    assert_same(result, expected)
    gpu.launches.clear()
    assert_same(trained_once(model, call, text), expected)
    assert not gpu.launches, "behind the block the compiled model is PyTorch's own again"


@knows_modes
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_block_within_a_compiled_function(backend: str, gpu: Any) -> None:
    model, text = Transformer(), torch.randint(11, (3, 5))

    @torch.compile(backend=backend, fullgraph=True)  # type: ignore[untyped-decorator]
    def call(given: Any) -> Any:
        with route_torch():
            return model(given)

    result = trained_once(model, call, text)
    assert products(gpu) == 3 * PRODUCTS
    assert_same(result, trained_once(model, model, text))


@pytest.mark.parametrize("how", ["grad", "backward", "Tensor.backward"])
def test_a_model_that_is_checkpointed(how: str, gpu: Any) -> None:
    """It is called once more by whatever computes the gradients, and routed again."""
    from torch.utils.checkpoint import checkpoint

    model, text = Transformer(), torch.randint(11, (3, 5))
    _, expected = trained_once(model, model, text)
    parameters = list(model.parameters())
    with route_torch():
        loss = checkpoint(model, text, use_reentrant=False).square().mean()
        if how == "grad":
            gradients = torch.autograd.grad(loss, parameters)
        else:
            torch.autograd.backward(loss) if how == "backward" else loss.backward()
            gradients = [parameter.grad for parameter in parameters]
    # No weight needs the last of the products again; that is where PyTorch ends.
    assert 4 * PRODUCTS - 1 <= products(gpu) <= 4 * PRODUCTS
    assert_same((loss, gradients), (loss, expected))


def test_a_functional_call_with_gradients_for_each_sample(gpu: Any) -> None:
    model, x = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.GELU(), torch.nn.Linear(6, 1)), torch.randn(8, 5)
    parameters = dict(model.named_parameters())

    def loss(values: Any, sample: Any) -> Any:
        return torch.func.functional_call(model, values, (sample,)).square().sum()

    each = torch.func.vmap(torch.func.grad(loss), (None, 0))
    expected = each(parameters, x)
    with route_torch():
        result = each(parameters, x)
    assert gpu.launches
    for name, gradient in expected.items():
        torch.testing.assert_close(result[name], gradient, rtol=1e-4, atol=1e-4)

"""Generation with kernels of our own, without a GPU: stand-ins compute what the kernels say they do.

The kernels themselves run under emulation in rust/cuda/tests/emulated.
"""

import ctypes
import math

import octavo
import pytest
import torch
from octavo import _core
from octavo.cuda import device as cuda
from octavo.errors import ShapeError
from octavo.lab.polynomials import cuda_engine as engine_torch
from octavo.lab.polynomials.data import splits
from octavo.lab.polynomials.native_engine import Engine
from octavo.lab.polynomials.seq2seq import END, START, Seq2SeqConfig, build, fused
from octavo.lab.polynomials.seq2seq.cuda_graphs import Graphs, Tile
from octavo.lab.polynomials.seq2seq.folded import FoldedHybrid
from octavo.lab.polynomials.seq2seq.fused import FusedHybrid, fragments
from octavo.lab.polynomials.shipped import load_shipped
from torch.nn.functional import layer_norm, pad

CPU = torch.device("cpu")
# Share of lines that bfloat16 answers as float does.
LEAST_ALIKE = 0.998


def at(address: int, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Return the tensor at an address."""
    memory = (ctypes.c_char * (math.prod(shape) * dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


class Parts:
    """Weights at an address, taken in order."""

    def __init__(self, addresses: tuple[int, int]) -> None:
        self.matrices, self.vectors = addresses

    def matrix(self, rows: int, columns: int) -> torch.Tensor:
        """Element by element, as rows.cu describes fragments."""
        flat = at(self.matrices, torch.bfloat16, rows * columns)
        self.matrices += 2 * rows * columns
        row, k = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
        lane, word = row % 8 * 4 + k % 8 // 2, k // 16 % 2 * 2 + k // 8 % 2
        return flat[((row // 8 * (columns // 32) + k // 32) * 32 + lane) * 8 + word * 2 + k % 2].float()

    def vector(self, *shape: int) -> torch.Tensor:
        self.vectors += 4 * math.prod(shape)
        return at(self.vectors - 4 * math.prod(shape), torch.float32, *shape)


def rounded(x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16().float()


def cell(matrix, table, tokens, hidden, cells):
    """Return hidden state and cells of an LSTM after one more token; the hidden state is not rounded."""
    units = cells.shape[1]
    products = (
        (rounded(hidden) @ matrix.T).view(len(cells), units // 8, 4, 8).transpose(1, 2).reshape(len(cells), 4 * units)
    )
    enter, forget, leave, candidate = (products + table[tokens]).chunk(4, 1)
    cells = forget.sigmoid() * cells + enter.sigmoid() * candidate.tanh()
    return leave.sigmoid() * cells.tanh(), cells


def encode(on, model, rows, weights, source, states, ends):
    vocabulary, units, _, _, _, _, longest, _ = model
    parts, source = Parts(weights), at(source, torch.uint8, rows, longest).long()
    states = at(states, torch.bfloat16, rows, longest, 2, units)
    ends, lengths = at(ends, torch.bfloat16, rows, 2, units), (source != 0).sum(1)
    matrices, tables = [parts.matrix(4 * units, units) for _ in range(2)], parts.vector(2, vocabulary, 4 * units)
    for direction in range(2):
        hidden, cells = torch.zeros(2, rows, units)
        for step in range(longest):
            live = (step < lengths).nonzero()[:, 0]
            places = lengths[live] - 1 - step if direction else torch.full_like(live, step)
            new, cells[live] = cell(
                matrices[direction], tables[direction], source[live, places], hidden[live], cells[live]
            )
            hidden[live] = new
            states[live, places, direction] = new.bfloat16()
        ends[:, direction] = hidden.bfloat16()


def attend(query, keys, values, heads, hidden=None):
    """Mix values ``[B, S, D]``; scores are powers of two, those of positions ``hidden [B, S]`` 0."""
    query, keys, values = (x.unflatten(-1, (heads, -1)) for x in (query, keys, values))
    scores = torch.einsum("bhw,bshw->bhs", query, keys)
    if hidden is not None:
        scores = scores.masked_fill(hidden[:, None], -math.inf)
    return rounded(torch.einsum("bhs,bshw->bhw", (scores * math.log(2)).softmax(-1), values).flatten(1))


def decode(on, model, rows, weights, encoded, scratch, tokens, epsilon):
    vocabulary, _, width, heads, layers, inner, longest, most = model
    parts, source = Parts(weights), at(encoded[0], torch.uint8, rows, longest)
    memory = at(encoded[1], torch.bfloat16, rows, longest, layers, 2, width).float()
    hidden, cells = at(encoded[2], torch.bfloat16, rows, 2, width).float().unbind(1)
    hidden, table, found = hidden.tanh(), parts.vector(vocabulary, 4 * width), at(tokens, torch.uint8, rows, most)
    logits = -vocabulary % 8 + vocabulary
    gates = parts.matrix(4 * width, width)
    shapes = [(3 * width, width, width), (width, width, width)]
    shapes += [(width, width, width), (width, width, width), (inner, width, inner), (width, inner, width)] * layers
    shapes += [(logits, width, logits)]
    linears = [(parts.matrix(n, k), pad(parts.vector(given), (0, n - given))) for n, k, given in shapes]
    apply = lambda x, number: x @ linears[number][0].T + linears[number][1]  # noqa: E731
    norm = lambda x: rounded(layer_norm(x, x.shape[-1:], eps=epsilon))  # noqa: E731
    latest, live, own = torch.full((rows,), START), (source != 0).any(1), []
    found.zero_()
    memory.masked_fill_((source == 0)[..., None, None, None], 0)
    for step in range(most):
        x, cells = cell(gates, table, latest, hidden, cells)
        hidden = x
        own.append(rounded(apply(norm(x), 0)))
        before = torch.stack(own, 1)
        x = x + apply(attend(own[-1][:, :width], before[..., width : 2 * width], before[..., 2 * width :], heads), 1)
        for layer in range(layers):
            first, (keys, values) = 2 + 4 * layer, memory[:, :, layer].unbind(2)
            x = x + apply(attend(rounded(apply(norm(x), first)), keys, values, heads, source == 0), first + 1)
            x = x + apply(rounded(apply(norm(x), first + 2).relu()), first + 3)
        latest = apply(norm(x), -1)[:, :vocabulary].argmax(1)
        found[live, step] = latest[live].to(torch.uint8)
        live &= latest != END


@pytest.fixture
def kernels(monkeypatch):
    """Stand-ins for the kernels."""
    monkeypatch.setattr(fused, "place", lambda device: (0, 0))
    monkeypatch.setattr(_core, "_cuda_seq2seq_scratch", lambda number, model, rows: 4 * rows * model[7] * model[2])
    monkeypatch.setattr(_core, "_cuda_seq2seq_encode", encode)
    monkeypatch.setattr(_core, "_cuda_seq2seq_decode", decode)


def test_fragments_hold_every_weight_once():
    flat = fragments(torch.arange(16.0 * 64).view(16, 64))
    assert sorted(flat.tolist()) == list(range(1024))
    # Lane 0: row 0, columns 0, 1, 8, 9, 16, ...; lane 1 two columns on; lane 4 the next row.
    assert flat[:10].tolist() == [0, 1, 8, 9, 16, 17, 24, 25, 2, 3]
    assert flat[32] == 64 and flat[256] == 32 and flat[512] == 8 * 64


@pytest.mark.slow
def test_nearly_all_lines_have_the_answers_of_float(kernels):
    lines = [line.partition("=")[0] for line in splits().test[:2000]]
    model, tokenizer = load_shipped()
    source = torch.from_numpy(tokenizer.encode(lines, 32, end=False)[0])
    found = tokenizer.decode(FusedHybrid(model, CPU).generate_fixed(source).numpy())
    wanted = Engine.load(precision="float").expand(lines)
    alike = sum(one == other for one, other in zip(found, wanted, strict=True))
    assert alike >= LEAST_ALIKE * len(lines), alike


def test_other_sizes_and_rows_without_a_source(kernels):
    torch.manual_seed(0)
    sizes = {"embedding": 5, "encoder": 32, "hidden": 64, "heads": 2, "feedforward": 96, "layers": 3}
    model = build(Seq2SeqConfig(vocabulary=19, max_source=11, max_target=8, **sizes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    source = torch.randint(3, 19, (60, 11), dtype=torch.uint8)
    source[torch.arange(11) >= torch.randint(1, 12, (60, 1))] = 0
    wanted = FoldedHybrid(model).generate_fixed(source)
    source[7] = 0
    found = FusedHybrid(model, CPU).generate_fixed(source)
    assert found.shape == (60, 8) and not found[7].any()
    assert (found == wanted)[torch.arange(60) != 7].all(1).float().mean() > 0.9


def test_autocast_of_the_caller_changes_nothing(kernels):
    model, tokenizer = load_shipped()
    source = torch.from_numpy(
        tokenizer.encode([line.partition("=")[0] for line in splits().test[:40]], 32, end=False)[0]
    )
    generator = FusedHybrid(model, CPU)
    wanted = generator.generate_fixed(source)
    with torch.autocast("cpu", torch.float16):
        assert torch.equal(generator.generate_fixed(source), wanted)


def test_sources_that_the_kernels_would_misread_are_refused(kernels):
    generator = FusedHybrid(load_shipped()[0], CPU)
    sources = torch.zeros((4, 32), dtype=torch.uint8)
    for wrong in (sources.long(), sources[:, :31], sources.repeat(1, 2)[:, ::2], sources[0], sources.to("meta")):
        with pytest.raises(ShapeError, match=r"expected contiguous uint8 \[B, 32\] on cpu"):
            generator.generate_fixed(wrong)


def test_tiles_hold_no_rows_of_earlier_calls(kernels):
    model, tokenizer = load_shipped()
    tiles: list[Tile] = []

    def prepare(model, rows):
        source, tokens = torch.full((rows, 32), 3, dtype=torch.uint8), torch.empty((rows, 32), dtype=torch.uint8)
        tiles.append(Tile(source, tokens, lambda: tokens.copy_(model.generate_fixed(source))))
        return tiles[-1]

    graphs = Graphs(FusedHybrid(model, CPU), prepare)
    source = torch.from_numpy(tokenizer.encode(["(x+1)*(x-2)", "(2*h+3)**2"], 32, end=False)[0])
    assert tokenizer.decode(graphs(source).numpy()) == ["x**2-x-2", "4*h**2+12*h+9"]
    assert not tiles[0].source_BS[2:].any()


@pytest.mark.parametrize(
    ("precision", "taken", "compiler", "route"),
    [("bfloat16", 64, True, "kernel"), ("bfloat16", None, True, "graph"), ("bfloat16", 64, False, "graph"),
     ("float", 64, True, "graph")],
)  # fmt: skip
def test_the_route_is_named(monkeypatch, precision, taken, compiler, route):
    monkeypatch.setattr(cuda, "is_available", lambda: compiler)
    monkeypatch.setattr(_core, "_cuda_seq2seq_scratch", lambda *given: taken)
    monkeypatch.setattr(FusedHybrid, "__init__", lambda self, model, device: None)
    monkeypatch.setattr(FoldedHybrid, "to", lambda self, device: self)
    monkeypatch.setattr(Graphs, "__init__", lambda self, model: None)
    model, _ = load_shipped()
    generate, found = engine_torch._generator(model, torch.device("cuda", 0), precision)
    assert found == route and isinstance(generate, Graphs)


@pytest.mark.skipif(not cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("count", [1, 5, 300, 9000])
def test_kernels_on_a_gpu_answer_as_the_native_engine(count):
    lines = [line.partition("=")[0] for line in splits().test[:count]]
    engine = octavo.lab.polynomials.Engine.load(precision="bfloat16", device="cuda")
    assert engine.route == "kernel"
    for _ in range(2):
        alike = sum(a == b for a, b in zip(engine.expand(lines), Engine.load().expand(lines), strict=True))
        assert alike >= LEAST_ALIKE * count - 1

"""Laws of the sequence-to-sequence models, over the three architectures and shapes where nothing divides anything."""

import copy
import itertools
import json
from dataclasses import replace

import octavo
import pytest
import torch
from lab.polynomials.random_models import random_model
from octavo.errors import DTypeError, SettingError, ShapeError
from octavo.lab.polynomials.seq2seq import ARCHITECTURES, END, PAD, START, Seq2SeqConfig, build
from octavo.lab.polynomials.seq2seq.generate import beam_search, greedy

# Float32 sums of a few dozen terms in another order.
CLOSE = 1e-5
# Logits in bfloat16, whose mantissa has eight bits, after a few layers.
BFLOAT16 = 0.1

SHAPES = {
    "usual": Seq2SeqConfig(
        vocabulary=11, embedding=6, encoder=5, hidden=12, heads=3, layers=2, feedforward=10, max_source=9, max_target=8
    ),
    "odd": Seq2SeqConfig(
        vocabulary=7, embedding=3, encoder=1, hidden=7, heads=7, layers=1, feedforward=1, max_source=5, max_target=3
    ),
    "long": Seq2SeqConfig(
        vocabulary=5, embedding=1, encoder=3, hidden=10, heads=1, layers=3, feedforward=13, max_source=2, max_target=17
    ),
}


def rows(config, count, seed, side="source"):
    """Rows of every length from 1 to the longest, padded."""
    longest = config.max_source if side == "source" else config.max_target
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(END + 1, config.vocabulary, (count, longest), generator=generator)
    lengths = 1 + torch.arange(count) % longest
    return torch.where(torch.arange(longest) < lengths[:, None], ids, PAD)


def slabs_of(state):
    return {name: slab for name, slab in state.cache.items() if name.startswith(("keys", "values"))}


def steps(model, source, target, spoil=None):
    """Logits of teacher forcing, made by steps; ``spoil`` is called with the state before each."""
    tokens = torch.cat([torch.full((len(target), 1), START), target[:, :-1]], 1)
    state = model.begin(model.encode_checked(source), target.shape[1])
    found = []
    for token in tokens.unbind(1):
        if spoil:
            spoil(state)
        found.append(model.step(token, state))
    return torch.stack(found, 1)


@pytest.fixture(params=[(a, s) for a in ARCHITECTURES for s in SHAPES], ids=lambda p: "-".join(p))
def config(request):
    architecture, shape = request.param
    return replace(SHAPES[shape], architecture=architecture)


@pytest.fixture
def model(config):
    with torch.no_grad():
        yield random_model(config)


@pytest.fixture
def source(config):
    return rows(config, 13, seed=1)


@pytest.fixture
def target(config):
    return rows(config, 13, seed=2, side="target")


# --- the cache ------------------------------------------------------------------------------------------------------


def test_steps_give_the_logits_of_all_positions_at_once(model, source, target):
    assert torch.allclose(steps(model, source, target), model(source, target), atol=CLOSE, rtol=CLOSE)


@pytest.mark.parametrize("beam", [1, 2, 5])
def test_the_cache_changes_no_answer(model, source, beam):
    tokens, scores = model.generate(source, beam=beam)
    whole, whole_scores = model.generate(source, beam=beam, cache=False)
    assert torch.equal(tokens, whole)
    assert torch.allclose(scores, whole_scores, atol=10 * CLOSE, rtol=CLOSE)


@pytest.mark.parametrize("garbage", [torch.nan, torch.inf, 1e9, -1e9])
def test_slots_that_are_not_filled_have_no_influence(model, source, target, garbage):
    def spoil(state):
        for slab in slabs_of(state).values():
            slab[:, :, state.length :] = garbage

    assert torch.equal(steps(model, source, target, spoil), steps(model, source, target))


def test_slabs_have_room_for_the_tokens_that_were_asked_for(model, source, config):
    memory = model.encode_checked(source)
    for length in (1, config.max_target):
        assert all(slab.shape[2] == length for slab in slabs_of(model.begin(memory, length)).values())


def test_a_state_of_chosen_rows_goes_on_as_these_rows_do(model, source, target):
    chosen = torch.tensor([3, 0, 3, 12, 7, 3])
    memory = model.encode_checked(source)
    state = model.begin(memory, 3)
    start, first, second = torch.full((13,), START), target[:, 0], target[:, 1]
    model.step(start, state)
    picked = state.select(chosen)
    assert picked.length == 1
    whole = [model.step(first, state), model.step(second, state)]
    parts = [model.step(first[chosen], picked), model.step(second[chosen], picked)]
    for all_rows, some in zip(whole, parts, strict=True):
        assert torch.allclose(all_rows[chosen], some, atol=CLOSE, rtol=CLOSE)


def test_states_that_were_selected_do_not_share_memory(model, source, target):
    """Two hypotheses of one row must not write into each other's cache."""
    state = model.begin(model.encode_checked(source), 2)
    twice = state.select(torch.tensor([0, 0]))
    model.step(torch.tensor([START, START]), twice)
    both = model.step(target[:2, 0], twice)
    for row in range(2):
        alone = model.begin(model.encode_checked(source[:1]), 2)
        model.step(torch.tensor([START]), alone)
        assert torch.allclose(model.step(target[row : row + 1, 0], alone)[0], both[row], atol=CLOSE, rtol=CLOSE)


# --- rows and positions ---------------------------------------------------------------------------------------------


def test_rows_do_not_depend_on_padding_or_on_each_other(model, source, target):
    together = model(source, target)
    for row, length in enumerate((source != PAD).sum(1).tolist()):
        alone = model(source[row : row + 1, :length], target[row : row + 1])
        assert torch.allclose(alone[0], together[row], atol=CLOSE, rtol=CLOSE)


@pytest.mark.parametrize("beam", [1, 3])
def test_answers_do_not_depend_on_padding_or_on_other_rows(model, source, beam):
    tokens, scores = model.generate(source, beam=beam)
    for row, length in enumerate((source != PAD).sum(1).tolist()):
        alone, score = model.generate(source[row : row + 1, :length], beam=beam)
        assert torch.equal(alone[0], tokens[row, : alone.shape[1]])
        assert (tokens[row, alone.shape[1] :] == PAD).all()
        assert torch.allclose(score, scores[row], atol=10 * CLOSE, rtol=CLOSE)


def test_a_token_has_no_influence_on_what_is_predicted_before_it_and_in_its_place(model, source, target, config):
    target = torch.where(target == PAD, END + 1, target)
    expected = model(source, target)
    for position in range(config.max_target):
        changed = target.clone()
        changed[:, position] = END + 1 + (changed[:, position] - END) % (config.vocabulary - END - 1)
        found = model(source, changed)
        assert torch.equal(found[:, : position + 1], expected[:, : position + 1])
        later = found[:, position + 1 :] != expected[:, position + 1 :]
        assert later.any() or position + 1 == config.max_target


def test_padding_behind_a_target_changes_no_logit_before_it(model, source, target):
    short = target[:, :2]
    assert torch.allclose(model(source, target)[:, :2], model(source, short), atol=CLOSE, rtol=CLOSE)


def test_ids_may_be_bytes(model, source, target):
    assert torch.equal(model(source.to(torch.uint8), target.to(torch.uint8)), model(source, target))
    assert torch.equal(model.generate(source.to(torch.uint8))[0], model.generate(source)[0])


def test_a_row_of_padding_alone_stays_finite(model, source, target):
    source = torch.cat([source, torch.zeros_like(source[:1])])
    assert model(source, torch.cat([target, target[:1]])).isfinite().all()
    _, scores = model.generate(source)
    assert scores.isfinite().all()


def test_every_token_of_the_source_has_an_influence(model, source, target, config):
    full = source[source[:, -1] != PAD]
    answers = target[: len(full)]
    expected = model(full, answers)
    for position in range(config.max_source):
        changed = full.clone()
        changed[:, position] = END + 1 + (changed[:, position] - END) % (config.vocabulary - END - 1)
        assert not torch.allclose(model(changed, answers), expected, atol=CLOSE)


# --- generation -----------------------------------------------------------------------------------------------------


def log_probability(model, source, tokens):
    """The score of given answers, by teacher forcing; pad and start are no answers."""
    logits = model(source, tokens).double()
    logits[..., [PAD, START]] = -torch.inf
    each = logits.log_softmax(-1).gather(-1, tokens[..., None]).squeeze(-1)
    return torch.where(tokens == PAD, 0, each).sum(1)


@pytest.mark.parametrize("beam", [1, 2, 4])
def test_the_score_is_the_log_probability_of_the_answer(model, source, beam):
    tokens, scores = model.generate(source, beam=beam)
    assert torch.allclose(scores.double(), log_probability(model, source, tokens), atol=10 * CLOSE, rtol=CLOSE)


@pytest.mark.parametrize("beam", [1, 3])
def test_answers_are_rows_that_end_once_and_are_padded_behind(model, source, config, beam):
    tokens, _ = model.generate(source, beam=beam)
    assert tokens.dtype == torch.long
    assert 1 <= tokens.shape[1] <= config.max_target
    assert (tokens[:, -1] != PAD).any()  # no wider than the longest
    for row in tokens.tolist():
        answer = row[: row.index(END) + 1] if END in row else [token for token in row if token != PAD]
        assert row == answer + [PAD] * (len(row) - len(answer))
        assert PAD not in answer and START not in answer
        assert answer[-1] == END or len(answer) == config.max_target


@pytest.mark.parametrize("length", [1, 2])
def test_answers_are_cut_to_the_length_that_is_asked_for(model, source, length):
    tokens, _ = model.generate(source, max_length=length)
    longer, _ = model.generate(source)
    assert torch.equal(tokens, longer[:, :length])


def test_a_beam_of_one_is_greedy(model, source, config):
    memory = model.encode_checked(source)
    for cache in (True, False):
        tokens, scores = greedy(model, memory, config.max_target, cache=cache)
        beamed, beam_scores = beam_search(model, memory, config.max_target, 1, cache=cache)
        assert torch.equal(tokens, beamed)
        assert torch.allclose(scores, beam_scores, atol=10 * CLOSE, rtol=CLOSE)


@pytest.mark.filterwarnings("ignore::octavo.CoverageWarning")
def test_quantized_and_packed_models_answer_with_their_quantized_positions(config, source):
    """Positions are read past their layers; what generation reads is what the forward pass reads."""
    model = random_model(config)
    recipe = "int8:channel; type:Linear int8:channel input=int8:channel"  # integer products agree bit for bit
    simulated = octavo.quantize_model(model, recipe, progress=False).eval()
    rounded = copy.deepcopy(simulated)
    with torch.no_grad():
        for name in ("source_positions", "target_positions"):
            if hasattr(rounded, name):
                table = getattr(rounded, name).weight
                table.copy_(octavo.quantize(table, "int8:channel"))
        tokens, scores = simulated.generate(source)
        for other in (rounded, octavo.pack_model(simulated)):
            found, found_scores = other.generate(source)
            assert torch.equal(found, tokens) and torch.allclose(found_scores, scores, atol=10 * CLOSE, rtol=CLOSE)


def best_answer(model, source, length):
    """The likeliest of all answers of up to ``length`` tokens, by trying them all, and its score."""
    live = range(END + 1, model.config.vocabulary)
    answers = [[*head, END] for size in range(length) for head in itertools.product(live, repeat=size)]
    answers += [list(head) for head in itertools.product(live, repeat=length)]
    padded = torch.tensor([answer + [PAD] * (length - len(answer)) for answer in answers])
    scores = log_probability(model, source.expand(len(padded), -1), padded)
    return padded[scores.argmax()], scores.max()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_beam_that_holds_all_hypotheses_finds_the_likeliest_answer(architecture):
    config = replace(SHAPES["usual"], architecture=architecture, vocabulary=6, max_target=3)
    beyond_greedy = 0
    for seed in range(4):
        model = random_model(config, seed, factor=2.0)
        source = rows(config, 6, seed)
        with torch.no_grad():
            memory = model.encode_checked(source)
            tokens, scores = beam_search(model, memory, 3, config.vocabulary**2, cache=True)
            _, greedy_scores = greedy(model, memory, 3, cache=True)
            for row in range(len(source)):
                expected, score = best_answer(model, source[row : row + 1], 3)
                width = tokens.shape[1]
                assert torch.equal(tokens[row], expected[:width]), (seed, row)
                assert torch.allclose(scores[row].double(), score, atol=10 * CLOSE)
                beyond_greedy += int(scores[row] > greedy_scores[row] + CLOSE)
                # Between the two, a beam is not always better than a narrower one; but never better than the best.
                for beam in range(1, config.vocabulary):
                    _, some = beam_search(model, memory, 3, beam, cache=True)
                    assert some[row] <= score + 10 * CLOSE
    assert beyond_greedy  # else the test would hold for greedy search, too


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_two_tokens_need_a_beam_of_the_vocabulary(architecture):
    """The largest beam that generate takes keeps every first token, so that no answer of two scores higher."""
    config = replace(SHAPES["usual"], architecture=architecture)
    model, source = random_model(config), rows(config, 5, seed=4)
    with torch.no_grad():
        _, scores = model.generate(source, max_length=2, beam=config.vocabulary)
        for row in range(len(source)):
            assert torch.allclose(
                scores[row].double(), best_answer(model, source[row : row + 1], 2)[1], atol=10 * CLOSE
            )
        assert (scores >= model.generate(source, max_length=2)[1] - CLOSE).all()


def test_of_equal_scores_the_lower_token_wins(model, source, config):
    torch.nn.init.zeros_(model.output.weight)
    torch.nn.init.zeros_(model.output.bias)
    for beam in (1, 2, 3):
        tokens, _ = model.generate(source, beam=beam)
        assert tokens.tolist() == [[END]] * len(source)
    model.output.bias[END] = -1.0
    tokens, _ = model.generate(source, beam=2)
    assert (tokens == END + 1).all()
    assert tokens.shape[1] == config.max_target


class Counted:
    """How many rows each step of a model was asked for."""

    def __init__(self, model, monkeypatch):
        self.rows, step = [], model.step
        monkeypatch.setattr(
            model, "step", lambda tokens, state: (self.rows.append(len(tokens)), step(tokens, state))[1]
        )


@pytest.mark.parametrize("beam", [1, 2])
def test_generation_stops_when_all_rows_have_ended(model, source, monkeypatch, beam):
    model.output.bias.data[END] = 1e3
    counted = Counted(model, monkeypatch)
    tokens, _ = model.generate(source, beam=beam)
    assert tokens.tolist() == [[END]] * len(source)
    # Beams: the second-best first token has not ended, so it goes on for one more.
    assert len(counted.rows) == beam


def test_greedy_search_computes_rows_that_have_ended_no_further(model, source, monkeypatch):
    counted = Counted(model, monkeypatch)
    tokens, _ = model.generate(source)
    assert counted.rows == [int((tokens[:, place:] != PAD).any(1).sum()) for place in range(tokens.shape[1])]


def test_no_rows_give_no_answers(model, config):
    nothing = torch.empty((0, config.max_source), dtype=torch.long)
    for beam in (1, 2):
        tokens, scores = model.generate(nothing, beam=beam)
        assert tokens.shape == (0, 0)
        assert scores.shape == (0,)


def test_generation_keeps_no_gradients_and_leaves_the_source_alone(config, source):
    model, before = random_model(config), source.clone()
    _, scores = model.generate(source)
    assert not scores.requires_grad
    assert torch.equal(source, before)


# --- precision and training -----------------------------------------------------------------------------------------


def test_bfloat16_autocast_works_everywhere_and_is_close(config, source, target):
    model = random_model(config, factor=1.0)
    with torch.no_grad():
        expected = model(source, target)
        with torch.autocast("cpu", torch.bfloat16):
            assert (model(source, target).float() - expected).abs().max() < BFLOAT16
            assert (steps(model, source, target).float() - expected).abs().max() < BFLOAT16
            for beam, cache in itertools.product((1, 3), (True, False)):
                tokens, scores = model.generate(source, beam=beam, cache=cache)
                assert scores.dtype == torch.float32
                assert scores.isfinite().all()
                assert tokens.shape[0] == len(source)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_model_of_another_dtype_works(config, source, target, dtype):
    model = random_model(config, factor=1.0)
    with torch.no_grad():
        expected = model(source, target)
        model.to(dtype)
        assert (model(source, target).float() - expected).abs().max() < BFLOAT16
        assert (steps(model, source, target).float() - expected).abs().max() < BFLOAT16
        model.generate(source, beam=2)


def test_gradients_reach_every_parameter(config, source, target):
    reached = set()
    for seed in range(4):  # one unit behind a ReLU may be dead for all rows
        model = random_model(config, seed).train()
        logits = model(source, target)
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PAD).backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
            reached |= {name} if parameter.grad.any() else set()
    # What is added to all keys adds the same to all scores of a query, which softmax does not see.
    assert {name for name in model.state_dict() if not name.endswith("attention.key.bias")} <= reached


@pytest.mark.slow
def test_training_fits_a_handful_of_rows(config, source, target):
    if config.feedforward == 1:
        pytest.skip("too narrow to learn 13 rows")
    model = random_model(config, factor=1.0).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)

    def loss():
        return torch.nn.functional.cross_entropy(
            model(source, target).flatten(0, 1), target.flatten(), ignore_index=PAD
        )

    first = loss().item()
    for _ in range(60):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    assert loss().item() < 0.6 * first


def test_the_same_seed_makes_the_same_model(config):
    first, second, other = (
        random_model(config).state_dict(),
        random_model(config).state_dict(),
        random_model(config, seed=1).state_dict(),
    )
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_the_parameters_are_counted(model):
    assert model.parameter_count == sum(tensor.numel() for tensor in model.state_dict().values())


# --- refusals -------------------------------------------------------------------------------------------------------


def ids(*shape, dtype=torch.long):
    return torch.full(shape, 3).to(dtype)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(
    ("source", "target", "error", "message"),
    [
        (ids(1), ids(1, 5), ShapeError, r"source has shape \(1,\); accepted are rows of 1 to 9 ids"),
        (ids(1, 2, 5), ids(1, 5), ShapeError, r"source has shape \(1, 2, 5\)"),
        (ids(1, 0), ids(1, 5), ShapeError, r"source has shape \(1, 0\)"),
        (ids(1, 10), ids(1, 5), ShapeError, r"source has shape \(1, 10\); accepted are rows of 1 to 9 ids"),
        (ids(1, 5), ids(1, 9), ShapeError, r"target has shape \(1, 9\); accepted are rows of 1 to 8 ids"),
        (ids(1, 5), ids(1, 0), ShapeError, r"target has shape \(1, 0\)"),
        (ids(1, 5), ids(5), ShapeError, r"target has shape \(5,\)"),
        (ids(2, 5), ids(3, 5), ShapeError, "source has 2 rows and target 3"),
        (ids(1, 5, dtype=torch.float32), ids(1, 5), DTypeError, r"source has dtype torch\.float32; accepted are uint8"),
        (ids(1, 5, dtype=torch.int32), ids(1, 5), DTypeError, r"source has dtype torch\.int32"),
        (ids(1, 5), ids(1, 5, dtype=torch.bool), DTypeError, r"target has dtype torch\.bool"),
    ],
)
def test_wrong_rows_are_refused(architecture, source, target, error, message):
    model = random_model(replace(SHAPES["usual"], architecture=architecture))
    with pytest.raises(error, match=message):
        model(source, target)
    if "source has shape" in message or "source has dtype" in message:
        with pytest.raises(error, match=message):
            model.generate(source)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": 0}, "max_length is 0; accepted are 1 to 8"),
        ({"max_length": 9}, "max_length is 9; accepted are 1 to 8"),
        ({"beam": 0}, "beam is 0; accepted are 1 to 11"),
        ({"beam": 12}, "beam is 12; accepted are 1 to 11"),
    ],
)
def test_lengths_and_beams_outside_their_range_are_refused(options, message):
    with pytest.raises(ShapeError, match=message):
        random_model(SHAPES["usual"]).generate(ids(1, 5), **options)


# --- the configuration ----------------------------------------------------------------------------------------------


def test_a_configuration_survives_json(config):
    assert Seq2SeqConfig.from_dict(json.loads(json.dumps(config.as_dict()))) == config
    assert hash(Seq2SeqConfig.from_dict(config.as_dict())) == hash(config)
    assert build(config).config == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "rnn"}, "architecture is 'rnn'; accepted are lstm, hybrid, transformer"),
        ({"architecture": None}, "architecture is None"),
        ({"heads": 5}, "heads is 5; it must divide hidden, 128"),
        ({"vocabulary": 3}, "vocabulary is 3; accepted is a whole number from 4 to 256"),
        ({"vocabulary": 257}, "vocabulary is 257"),
        ({"layers": 0}, "layers is 0; accepted is a whole number from 1 to 64"),
        ({"layers": True}, "layers is True"),
        ({"layers": 1.0}, r"layers is 1\.0"),
        ({"layers": "1"}, "layers is '1'"),
        ({"hidden": 2**40}, "hidden is 1099511627776"),
        ({"max_source": -1}, "max_source is -1"),
        ({"max_target": 4097}, "max_target is 4097"),
        ({"feedforward": None}, "feedforward is None"),
    ],
)
def test_wrong_fields_are_refused(changes, message):
    with pytest.raises(SettingError, match=message):
        Seq2SeqConfig(**changes)
    with pytest.raises(SettingError, match=message):
        Seq2SeqConfig.from_dict(Seq2SeqConfig().as_dict() | changes)


def test_unknown_and_missing_fields_are_refused():
    values = Seq2SeqConfig().as_dict()
    with pytest.raises(SettingError, match="unknown field 'colour'"):
        Seq2SeqConfig.from_dict(values | {"colour": 1})
    values.pop("layers")
    with pytest.raises(SettingError, match="missing field 'layers'"):
        Seq2SeqConfig.from_dict(values)


# --- names that files depend on -------------------------------------------------------------------------------------


def test_the_tensors_of_the_shipped_architecture_are_these():
    """Exported models and the engine know tensors by these names and shapes; a change breaks both."""
    config = Seq2SeqConfig(
        vocabulary=31, embedding=5, encoder=6, hidden=8, heads=2, layers=2, feedforward=9, architecture="hybrid"
    )

    def linear(name, outputs, inputs):
        return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}

    def norm(name, width):
        return {f"{name}.weight": (width,), f"{name}.bias": (width,)}

    def lstm(name, inputs, units):
        return {
            f"{name}.weight_ih_l0": (4 * units, inputs),
            f"{name}.weight_hh_l0": (4 * units, units),
            f"{name}.bias_ih_l0": (4 * units,),
            f"{name}.bias_hh_l0": (4 * units,),
        }

    def attention(name, width, memory):
        return {
            **linear(f"{name}.query", width, width),
            **linear(f"{name}.key", width, memory),
            **linear(f"{name}.value", width, memory),
            **linear(f"{name}.output", width, width),
        }

    def block(name):
        return {
            **norm(f"{name}.cross_norm", 8),
            **attention(f"{name}.cross_attention", 8, 12),
            **norm(f"{name}.feedforward_norm", 8),
            **linear(f"{name}.feedforward.expand", 9, 8),
            **linear(f"{name}.feedforward.contract", 8, 9),
        }

    assert {name: tuple(tensor.shape) for name, tensor in build(config).state_dict().items()} == {
        "source_embedding.weight": (31, 5),
        "target_embedding.weight": (31, 5),
        **lstm("encoder.forwards", 5, 6),
        **lstm("encoder.backwards", 5, 6),
        **norm("memory_norm", 12),
        **linear("bridge", 16, 12),
        **lstm("decoder", 5, 8),
        **norm("self_norm", 8),
        **attention("self_attention", 8, 8),
        **block("blocks.0"),
        **block("blocks.1"),
        **norm("output_norm", 8),
        **linear("output", 31, 8),
    }

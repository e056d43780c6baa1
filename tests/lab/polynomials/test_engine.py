"""The native engine against the PyTorch models that define it, and against files and lines that are wrong."""

import io
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import octavo
import pytest
import torch
from octavo import _core
from octavo.data import CharTokenizer
from octavo.errors import ContainerError, DataError, DTypeError, OctavoError, SettingError
from octavo.lab.polynomials.native_engine import Engine, Summary
from octavo.lab.polynomials.seq2seq import Seq2SeqConfig, build
from octavo.tensors import container

# Sums of float32 in another order, over up to 24 tokens.
SCORE = 1e-4
CHARACTERS = "()*+-0123456789=xyzé"
TOKENIZER = CharTokenizer(CHARACTERS)
SHAPES = {
    "lstm": {"architecture": "lstm", "embedding": 12, "encoder": 10, "hidden": 20},
    "lstm-odd": {"architecture": "lstm", "embedding": 7, "encoder": 3, "hidden": 15, "heads": 5, "max_target": 9},
    "hybrid": {"architecture": "hybrid", "embedding": 16, "encoder": 16, "hidden": 32, "feedforward": 48},
    "hybrid-odd": {"architecture": "hybrid", "embedding": 5, "encoder": 9, "hidden": 21, "heads": 3, "layers": 3},
    "hybrid-one": {"architecture": "hybrid", "embedding": 1, "encoder": 1, "hidden": 1, "heads": 1, "feedforward": 1},
    "transformer": {"architecture": "transformer", "hidden": 32, "feedforward": 40, "max_source": 40},
    "transformer-odd": {"architecture": "transformer", "hidden": 15, "heads": 5, "layers": 1, "feedforward": 11},
}


def make(name: str, seed: int = 0, **changes):
    """A model with random weights, wide enough apart that rounding decides no token."""
    fields = {"heads": 4, "layers": 2, "feedforward": 64, "max_source": 17, "max_target": 24}
    config = Seq2SeqConfig(**{**fields, "vocabulary": TOKENIZER.size, **SHAPES[name], **changes})
    torch.manual_seed(seed)
    model = build(config).eval()
    with torch.no_grad():
        for label, parameter in model.named_parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
            if "embedding" in label:
                parameter.normal_(std=2)
        model.output.weight.mul_(3)
        model.output.bias[2] += 1.0  # so that rows end at different places
    return model


def export(model, folder: Path, tensors=None, **config) -> Path:
    """Write a model folder as the documentation describes it, without the exporter."""
    folder.mkdir(parents=True, exist_ok=True)
    fields = {"octavo": 1, "kind": "seq2seq", **model.config.as_dict(), **config}
    (folder / "config.json").write_text(json.dumps(fields))
    TOKENIZER.save(folder / "tokenizer.json")
    container.save(dict(model.state_dict()) if tensors is None else tensors, folder / "model.safetensors")
    return folder


def lines(count: int, longest: int, seed: int = 0) -> list[str]:
    choose = random.Random(seed)
    return ["".join(choose.choices(CHARACTERS, k=choose.randint(1, longest))) for _ in range(count)]


def reference(model, rows: list[str], beam: int = 1) -> tuple[list[str], list[float]]:
    source, _ = TOKENIZER.encode(rows, end=False)
    tokens, scores = model.generate(torch.from_numpy(source), beam=beam)
    return TOKENIZER.decode(tokens), scores.tolist()


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory) -> Path:
    return export(make("hybrid"), tmp_path_factory.mktemp("models") / "hybrid")


# --- the models --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("beam", [1, 2, 5])
def test_answers_and_scores_are_those_of_pytorch(tmp_path, name, beam):
    model = make(name, seed=beam)
    engine = Engine.load(export(model, tmp_path), route="general")
    rows = lines(70, model.config.max_source)
    answers, scores = reference(model, rows, beam)
    found = engine._core.expand_scored(rows, beam)
    assert [text for text, _ in found] == answers
    np.testing.assert_allclose([score for _, score in found], scores, atol=SCORE)
    assert len(set(answers)) > 1 or name == "hybrid-one"
    assert engine.expand(rows, beam=beam) == answers


@pytest.mark.parametrize("name", ["lstm-odd", "hybrid-odd", "transformer-odd"])
def test_the_widest_beam_is_that_of_pytorch(tmp_path, name):
    model = make(name)
    engine = Engine.load(export(model, tmp_path))
    rows, beam = lines(6, model.config.max_source), model.config.vocabulary
    found = engine._core.expand_scored(rows, beam)
    answers, scores = reference(model, rows, beam)
    assert [text for text, _ in found] == answers
    np.testing.assert_allclose([score for _, score in found], scores, atol=SCORE)


def test_of_equal_scores_the_earlier_hypothesis_and_the_lower_token_win(tmp_path):
    """All logits equal: every choice is a tie."""
    model = make("hybrid")
    with torch.no_grad():
        model.output.weight.zero_()
        model.output.bias.zero_()
    engine = Engine.load(export(model, tmp_path), route="general")
    for beam in (1, 2, 3, 7):
        assert engine.expand(["x+1", "(y)*2"], beam=beam) == reference(model, ["x+1", "(y)*2"], beam)[0]


@pytest.mark.parametrize("architecture", ["lstm", "hybrid", "transformer"])
@pytest.mark.parametrize("fmt", ["mxint8", "int8:channel", "int6:g32", "mxfp8e4m3", "nf4", "bfp6/16", "fixed8"])
def test_packed_weights_are_decoded(tmp_path, architecture, fmt):
    model = make(architecture)
    tensors = {n: octavo.encode(t, fmt) if t.ndim == 2 else t for n, t in model.state_dict().items()}
    export(model, tmp_path, tensors)
    loaded = container.load(tmp_path / "model.safetensors")
    model.load_state_dict(
        {n: octavo.decode(t) if t.__class__.__name__ == "PackedTensor" else t for n, t in loaded.items()}
    )
    rows = lines(20, model.config.max_source)
    found = Engine.load(tmp_path, route="general")._core.expand_scored(rows, 1)
    answers, scores = reference(model, rows)
    np.testing.assert_allclose([score for _, score in found], scores, atol=SCORE)
    assert [text for text, _ in found] == answers


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("fmt", [None, "mxint8"])
def test_sixteen_bit_weights_are_widened(tmp_path, dtype, fmt):
    model = make("hybrid")
    model.load_state_dict({n: t.to(dtype).float() for n, t in model.state_dict().items()})
    tensors = {n: t.to(dtype) for n, t in model.state_dict().items()}
    if fmt:
        tensors = {n: octavo.encode(t, fmt) if t.ndim == 2 else t for n, t in tensors.items()}
        plain = {n: (octavo.decode(t) if not isinstance(t, torch.Tensor) else t).float() for n, t in tensors.items()}
        model.load_state_dict(plain)
    engine = Engine.load(export(model, tmp_path, tensors), route="general")
    rows = lines(20, model.config.max_source)
    np.testing.assert_allclose(
        [s for _, s in engine._core.expand_scored(rows, 1)], reference(model, rows)[1], atol=SCORE
    )


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("beam", [1, 3])
def test_an_answer_depends_on_its_line_alone(tmp_path, name, beam):
    """Equal to the last bit: in any company, in any order, on any number of threads, at every SIMD level."""
    export(make(name), tmp_path)
    engine = Engine.load(tmp_path, route="general", threads=1)
    rows = lines(150, engine.config["max_source"])
    together = engine._core.expand_scored(rows, beam)
    assert [engine._core.expand_scored([row], beam)[0] for row in rows[:20]] == together[:20]
    assert engine._core.expand_scored(rows[::-1], beam)[::-1] == together
    for threads in (2, 3, 8):
        other = Engine.load(tmp_path, route="general", threads=threads)
        assert other._core.expand_scored(rows, beam) == together


@pytest.mark.parametrize("architecture", ["lstm", "hybrid", "transformer"])
def test_every_route_gives_the_answers_of_pytorch(tmp_path, architecture):
    """The shape of the shipped model; greedy answers by the route that is chosen for it, alone and in company."""
    config = {"embedding": 64, "encoder": 64, "hidden": 128, "feedforward": 256}
    model = make(architecture, **config)
    engine = Engine.load(export(model, tmp_path), threads=1)
    rows = lines(300, 17)
    answers = engine.expand(rows)
    assert answers == reference(model, rows)[0] == Engine.load(tmp_path, route="general").expand(rows)
    assert [engine.expand([row])[0] for row in rows[:40]] == answers[:40]
    assert engine.expand(rows[::-1])[::-1] == answers
    for threads in (2, 5):
        assert Engine.load(tmp_path, threads=threads).expand(rows) == answers


def test_simd_levels_agree(hybrid, simd):
    engine = Engine.load(hybrid, route="general")
    found = engine._core.expand_scored(lines(30, 17), 2)
    _core.force_simd(os.environ.get("OCTAVO_SIMD") or None)
    assert engine._core.expand_scored(lines(30, 17), 2) == found


@pytest.mark.parametrize("architecture", ["lstm", "hybrid", "transformer"])
def test_a_model_whose_numbers_overflow_still_answers(tmp_path, architecture):
    model = make(architecture)
    tensors = {n: t * 1e30 for n, t in model.state_dict().items()}
    engine = Engine.load(export(model, tmp_path, tensors))
    for beam in (1, 4):
        assert len(engine.expand(["x", "(x+1)*y"], beam=beam)) == 2


# --- lines -------------------------------------------------------------------------------------------------------


def test_no_lines_have_no_answers(hybrid):
    engine = Engine.load(hybrid)
    assert engine.expand([]) == []
    assert engine.expand(iter([])) == []


BAD = {
    "": "empty line; accepted are 1 to 17 characters",
    "x" * 18: "18 characters; accepted are 1 to 17",
    "x" * 10_000: "10000 characters; accepted are 1 to 17",
    "(x+q)": "column 4: character 'q' is not in the vocabulary; allowed are ",
    "x\ny": "column 2: character '\\n' is not in the vocabulary",
    "é\x00": "column 2: character '\\0' is not in the vocabulary",
    "x\ud800": "column 2: half of a surrogate pair",
}


@pytest.mark.parametrize("beam", [1, 2])
def test_a_wrong_line_has_its_own_error_and_affects_no_other(hybrid, beam):
    engine = Engine.load(hybrid)
    good = lines(20, 17)
    mixed = [row for pair in zip(good, list(BAD) * 3, strict=False) for row in pair]
    found = engine.expand(mixed, beam=beam, errors="return")
    assert found[::2] == engine.expand(good, beam=beam)
    for row, error in zip(mixed[1::2], found[1::2], strict=True):
        assert isinstance(error, DataError) and str(error).startswith(BAD[row])


def test_the_first_wrong_line_is_named(hybrid):
    engine = Engine.load(hybrid)
    with pytest.raises(DataError, match=r"^line 3: column 1: character 'q' is not in the vocabulary"):
        engine.expand(["x", "y", "q", ""])
    for wrong, reason in [("x", "lines is a string"), (5, "lines is a int"), (["x", 5], "line 2 is a int")]:
        with pytest.raises(DTypeError, match=reason):
            engine.expand(wrong)
    for beam in (0, -1, 24, 257, 10**30, True, 1.0, "2"):
        with pytest.raises(SettingError, match="beam is"):
            engine.expand(["x"], beam=beam)
        with pytest.raises(SettingError, match="beam is"):
            engine.expand([], beam=beam)
    with pytest.raises(SettingError, match="errors is 'ignore'"):
        engine.expand(["x"], errors="ignore")


# --- streams -----------------------------------------------------------------------------------------------------


class Pieces(io.RawIOBase):
    """Gives the bytes of a text in pieces of random sizes."""

    def __init__(self, text: bytes, largest: int, seed: int = 0) -> None:
        self.text, self.largest, self.random = text, largest, random.Random(seed)

    def read(self, most: int) -> bytes:
        size = min(most, self.random.randint(1, self.largest))
        piece, self.text = self.text[:size], self.text[size:]
        return piece


def stream(engine, text: bytes, largest: int = 1 << 16, **options):
    out, failed = io.BytesIO(), []
    summary = engine.expand_stream(
        Pieces(text, largest), out, failed=lambda number, reason: failed.append((number, reason)), **options
    )
    return out.getvalue(), failed, summary


@pytest.mark.parametrize("largest", [1, 7, 100, 1 << 16])
def test_a_stream_answers_in_order_whatever_its_pieces(hybrid, largest):
    engine = Engine.load(hybrid)
    rows = lines(9000 if largest > 10 else 300, 17)
    out, failed, summary = stream(engine, "\n".join(rows).encode(), largest)
    assert out.decode().split("\n")[:-1] == engine.expand(rows)
    assert not failed and summary == Summary(len(rows), 0)


def test_broken_lines_of_a_stream_are_named_and_leave_empty_lines(hybrid):
    engine = Engine.load(hybrid)
    long = b"\xc3\xa9" * 5_000
    text = b"x+1\n\nq\n\xff\xfe\nx\xc3\n" + long + b"\r\n(x)\r\ny"
    out, failed, summary = stream(engine, text, 3)
    one, two, three = (answer.encode() for answer in engine.expand(["x+1", "(x)", "y"]))
    assert out == one + b"\n\n\n\n\n\n" + two + b"\n" + three + b"\n"
    assert summary == Summary(8, 5)
    reasons = [
        (2, "empty line; accepted are 1 to 17 characters"),
        (3, "column 1: character 'q' is not in the vocabulary"),
        (4, "column 1: broken UTF-8 at byte 0xff"),
        (5, "column 2: broken UTF-8 at byte 0xc3"),
        (6, "5001 characters; accepted are 1 to 17"),
    ]
    assert [number for number, _ in failed] == [number for number, _ in reasons]
    for (_, found), (_, reason) in zip(failed, reasons, strict=True):
        assert found.startswith(reason)


def test_the_end_of_a_stream_needs_no_line_feed(hybrid):
    engine = Engine.load(hybrid)
    answer = engine.expand(["x"])[0].encode() + b"\n"
    for text, out in [(b"", b""), (b"x", answer), (b"x\n", answer), (b"\n", b"\n"), (b"x\n\n", answer + b"\n")]:
        assert stream(engine, text)[0] == out


def test_forms_of_answers(hybrid):
    engine = Engine.load(hybrid)
    answer = engine.expand(["é+x"])[0]
    text = 'é+x\n"\n'.encode()
    assert stream(engine, text, format="pairs")[0].decode() == f"é+x={answer}\n\n"
    first, second = stream(engine, text, format="json")[0].decode().splitlines()
    assert json.loads(first) == {"line": 1, "left": "é+x", "right": answer}
    assert list(json.loads(second)) == ["line", "error"]
    with pytest.raises(SettingError, match="unknown format 'xml'; accepted are text, pairs, json"):
        stream(engine, text, format="xml")
    with pytest.raises(SettingError, match="beam is 0"):
        stream(engine, text, beam=0)


def test_what_was_read_is_answered_before_more_is_waited_for(hybrid):
    engine = Engine.load(hybrid)
    (ask_end, ask), (hear, hear_end) = os.pipe(), os.pipe()

    def serve() -> None:
        with open(ask_end, "rb") as reader, open(hear_end, "wb") as writer:
            engine.expand_stream(reader, writer)

    server = threading.Thread(target=serve)
    server.start()
    with open(ask, "wb", buffering=0) as asking, open(hear, "rb") as hearing:
        for row in lines(5, 17):
            asking.write(row.encode() + b"\n")
            assert hearing.readline().decode() == engine.expand([row])[0] + "\n"
    server.join(60)
    assert not server.is_alive()


def test_memory_of_a_line_without_end_is_bounded(hybrid):
    """A gigabyte without a line feed: only its beginning is kept."""
    code = f"""
import resource, sys
from octavo.lab.polynomials.native_engine import Engine
engine = Engine.load({str(hybrid)!r})
class Endless:
    left = 1 << 14
    def read(self, most):
        self.left -= 1
        return b"x" * (1 << 16) if self.left else b""
class Sink:
    write = flush = lambda *_: None
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
failed = []
engine.expand_stream(Endless(), Sink(), failed=lambda *error: failed.append(error))
assert failed == [(1, f"{{((1 << 14) - 1) << 16}} characters; accepted are 1 to 17")], failed
assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000
assert "torch" not in sys.modules and "numpy" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_files_appear_whole(hybrid, tmp_path):
    engine = Engine.load(hybrid)
    rows, seen = lines(5000, 17), []
    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("\n".join(rows) + "\n")
    target.write_text("old")
    target.chmod(0o600)
    assert engine.expand_file(source, target, progress=lambda *done: seen.append(done)) == Summary(5000, 0)
    assert target.read_text().split("\n")[:-1] == engine.expand(rows)
    assert target.stat().st_mode & 0o777 == 0o600
    assert seen[-1] == (5000, source.stat().st_size) and seen == sorted(seen)

    def stop(lines: int, nbytes: int) -> None:
        raise KeyboardInterrupt

    before = target.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        engine.expand_file(source, target, progress=stop)
    assert target.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.txt"]
    with pytest.raises(FileNotFoundError):
        engine.expand_file(tmp_path / "absent", target)
    with pytest.raises(IsADirectoryError):
        engine.expand_file(source, tmp_path)
    assert engine.expand_file(source, "/dev/null") == Summary(5000, 0)


# --- threads, forks, signals -------------------------------------------------------------------------------------


def test_threads_may_share_an_engine(hybrid):
    engine = Engine.load(hybrid)
    rows = lines(200, 17)
    expected, found = engine.expand(rows), {}

    def work(number: int) -> None:
        found[number] = [engine.expand(rows) for _ in range(3)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert found == {number: [expected] * 3 for number in range(6)}


def _in_child(engine, rows, answers) -> None:
    answers.put((engine.expand(rows), engine.expand(rows, beam=2)))


def test_children_of_fork_use_the_engine(hybrid):
    engine = Engine.load(hybrid, threads=2)
    rows = lines(300, 17)
    expected = engine.expand(rows), engine.expand(rows, beam=2)  # starts the threads that the child lacks
    fork = multiprocessing.get_context("fork")
    answers = fork.Queue()
    child = fork.Process(target=_in_child, args=(engine, rows, answers))
    child.start()
    try:
        assert answers.get(timeout=60) == expected
    finally:
        child.kill()


def test_an_interrupt_is_heard_between_blocks(hybrid):
    # A shell that starts the tests in the background has them ignore SIGINT, and children inherit that.
    code = f"""
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from octavo.lab.polynomials.native_engine import Engine
engine = Engine.load({str(hybrid)!r}, route="general")
print("go", flush=True)
try:
    engine.expand(["x+1"] * 3_000_000, beam=8)
except KeyboardInterrupt:
    print("heard", flush=True)
"""
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "go\n"
        time.sleep(1)
        child.send_signal(signal.SIGINT)
        assert child.communicate(timeout=60)[0] == "heard\n"
    finally:
        child.kill()


def test_no_thread_is_started_but_those_of_the_pool(hybrid):
    """Neither rayon's global pool nor one of candle's, which a fork would leave dead."""
    code = f"""
import os
from octavo.lab.polynomials.native_engine import Engine
engine = Engine.load({str(hybrid)!r}, route="general", threads=1)
engine.expand(["x+1"] * 2000, beam=4)
assert len(os.listdir("/proc/self/task")) == 1
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


# --- folders -----------------------------------------------------------------------------------------------------


def test_the_engine_describes_itself(hybrid):
    engine = octavo.lab.polynomials.Engine.load(hybrid, route="general")
    assert engine.config == make("hybrid").config.as_dict()
    assert (engine.precision, engine.route) == ("float", "general")
    assert repr(engine) == f"Engine({str(hybrid)!r}, hybrid, precision='float', route='general')"


def test_options_are_checked(hybrid, tmp_path):
    for options, reason in [
        ({"precision": "int4"}, "unknown precision 'int4'; accepted are float, bfloat16, integer"),
        ({"route": "gpu"}, "unknown route 'gpu'; accepted are auto, general, fused"),
        ({"threads": 0}, "threads is 0"),
        ({"threads": 257}, "threads is 257"),
        ({"threads": 1.5}, "threads is 1.5"),
        ({"precision": "integer", "route": "general"}, "precision integer runs on the fused route only"),
    ]:
        with pytest.raises(SettingError, match=reason):
            Engine.load(hybrid, **options)
    with pytest.raises(FileNotFoundError, match=r"integer\.safetensors"):
        Engine.load(hybrid, precision="integer")
    with pytest.raises(SettingError, match="no fused kernels for a transformer of"):
        Engine.load(export(make("transformer"), tmp_path), route="fused")


def test_a_package_without_a_model_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr("octavo.lab.polynomials.shipped.__file__", str(tmp_path / "shipped.py"))
    with pytest.raises(OctavoError, match="this installation comes without the polynomial model"):
        Engine.load()


def test_both_forms_of_a_folder_answer_alike(tmp_path):
    """Of 0.1, and of today: weights under another name, variants where the configuration says."""
    model = make("hybrid")
    former, rows = export(model, tmp_path / "former"), lines(20, model.config.max_source)
    today = export(model, tmp_path / "today", octavo=2, variants={"integer": "some.safetensors"})
    (today / "model.safetensors").rename(today / "model.octavo.safetensors")
    assert Engine.load(today).expand(rows) == Engine.load(former).expand(rows)
    for folder, told in ((former, r"former/integer\.safetensors"), (today, r"today/some\.safetensors")):
        with pytest.raises(FileNotFoundError, match=told):
            Engine.load(folder, precision="integer")
    shutil.copy(today / "model.octavo.safetensors", today / "model.safetensors")
    with pytest.raises(ContainerError, match="keep the one that is meant"):
        Engine.load(today)
    with pytest.raises(ContainerError, match="names no variant 'integer' of the model; it has none"):
        Engine.load(export(model, tmp_path / "bare", octavo=2), precision="integer")


def test_missing_files_are_named(hybrid, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"absent/config\.json"):
        Engine.load(tmp_path / "absent")
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        folder = shutil.copytree(hybrid, tmp_path / name)
        (folder / name).unlink()
        with pytest.raises(FileNotFoundError, match=name):
            Engine.load(folder)
        (folder / name).mkdir()
        with pytest.raises(OSError, match=name):
            Engine.load(folder)
        (folder / name).rmdir()
        os.mkfifo(folder / name)
        with pytest.raises(ContainerError, match=f"{name}: is not a regular file"):
            Engine.load(folder)


CONFIGS = [
    ({"octavo": 3}, "octavo is 3; accepted are 1 and 2"),
    ({"octavo": 2, "variants": {"integer": "../x.safetensors"}}, "variants: 'integer' is '../x.safetensors'"),
    ({"variants": {}}, "unknown field `variants` of version 1"),
    ({"kind": "gpt"}, "kind is 'gpt'"),
    ({"architecture": "rnn"}, "architecture is 'rnn'"),
    ({"dropout": 0.1}, "unknown field `dropout`"),
    ({"hidden": None}, "invalid type: null"),
    ({"hidden": 33}, "heads is 4; it must divide hidden, 33"),
    ({"vocabulary": 24}, "23 ids, the special ones included; the vocabulary of config.json has 24"),
    ({"encoder": 17}, r"cross_attention\.key\.weight: shape \[32, 32\]; the configuration demands \[32, 34\]"),
    ({"layers": 1}, r"blocks\.1\.cross_attention\.key\.bias: is left over"),
    ({"layers": 3}, r"blocks\.2\.cross_attention\.key\.bias: is missing"),
    ({"architecture": "lstm"}, r"attention_key\.bias: is missing"),
    ({"max_target": 5000}, "max_target is 5000"),
]


@pytest.mark.parametrize(("changes", "reason"), CONFIGS, ids=lambda value: str(value)[:40])
def test_wrong_configurations_are_refused(tmp_path, changes, reason):
    with pytest.raises(ContainerError, match=reason):
        Engine.load(export(make("hybrid"), tmp_path, **changes))


def test_wrong_tensors_are_refused_by_name(tmp_path):
    model = make("hybrid")
    state = dict(model.state_dict())
    key = "blocks.1.feedforward.expand.weight"
    poisoned = state[key].clone()
    poisoned[1, 3] = float("nan")
    nan_scale = octavo.encode(state[key], "int8:channel")
    nan_scale.scales[2] = float("inf")
    for changed, reason in [
        ({key: state[key].T.contiguous()}, r"shape \[32, 48\]; the configuration demands \[48, 32\]"),
        ({key: octavo.encode(state[key].T.contiguous(), "mxint8")}, r"shape \[32, 48\]; the configuration demands"),
        ({key: state[key].double()}, "dtype F64; accepted are F32, F16, BF16 and packed formats"),
        ({key: state[key].to(torch.int8)}, "dtype I8; accepted are"),
        ({key: poisoned}, "value NaN at flat position 35; accepted are finite values"),
        ({key: state[key].half() * 1e6}, "value (inf|-inf) at flat position"),
        ({key: nan_scale}, "value (inf|-inf|NaN) at flat position 6[45]; accepted are finite"),
        ({key: None}, "is missing; the configuration demands it with shape"),
        ({"optimizer": torch.zeros(3)}, "optimizer: is left over; the architecture has no such tensor"),
    ]:
        tensors = {n: t for n, t in {**state, **changed}.items() if t is not None}
        with pytest.raises(ContainerError, match=reason) as caught:
            Engine.load(export(model, tmp_path, tensors))
        assert "model.safetensors: " in str(caught.value)
        assert next(iter(changed)) in str(caught.value)


def test_truncated_files_are_refused(hybrid, tmp_path):
    folder = shutil.copytree(hybrid, tmp_path / "model")
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        whole = (hybrid / name).read_bytes()
        ends = range(0, len(whole) - 1, max(1, len(whole) // 60))
        for end in ends:
            (folder / name).write_bytes(whole[:end])
            with pytest.raises(ContainerError, match=name):
                Engine.load(folder)
        (folder / name).write_bytes(whole + b"{}")
        with pytest.raises(ContainerError, match=name):
            Engine.load(folder)
        (folder / name).write_bytes(whole)
    assert Engine.load(folder).expand(["x"])


def test_tampered_folders_are_refused_or_run(hybrid, tmp_path):
    """Every region of every file, bytes replaced at random: a typed error or a model that answers."""
    folder = shutil.copytree(hybrid, tmp_path / "model")
    choose = random.Random(5)
    refused = 0
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        whole = (hybrid / name).read_bytes()
        header = int.from_bytes(whole[:8], "little") + 8 if name.endswith("safetensors") else len(whole)
        for trial in range(250):
            bytes_ = bytearray(whole)
            for _ in range(choose.choice([1, 1, 2, 8])):
                region = choose.choice([8, header, header, len(whole)])
                bytes_[choose.randrange(region)] = choose.choice([0, 0x22, 0x7F, 0xFF, choose.randrange(256)])
            (folder / name).write_bytes(bytes_)
            try:
                assert len(Engine.load(folder).expand(["x", "(1)"], errors="return")) == 2, trial
            except (ContainerError, OSError, octavo.FormatError, octavo.ShapeError):
                refused += 1
        (folder / name).write_bytes(whole)
    assert refused > 300

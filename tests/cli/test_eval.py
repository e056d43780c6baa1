"""``octavo eval polynomials``: exact match on lines of one's own, against counting by hand."""

import json
import lzma
import os
import subprocess
import sys
import threading

import pytest
from octavo.lab.polynomials import data as polynomials
from octavo.lab.polynomials.native_engine import Engine


@pytest.fixture(scope="module")
def lines(exported):
    """More than are answered together; every third line has the model's own answer for its right side; the last is too long for the model."""
    lefts = [line.partition("=")[0] for line in polynomials.generate(17_000, seed=6)]
    answers = Engine.load(exported).expand(lefts)
    rows = [
        f"{left}={(right or 'x') if place % 3 == 0 else 'x'}"
        for place, (left, right) in enumerate(zip(lefts, answers, strict=True))
    ]
    return [*rows, "x" * 33 + "=x"]


@pytest.fixture(scope="module")
def counted(exported, lines):
    """What is wrong, found one line after the other."""
    answers = Engine.load(exported).expand([line.partition("=")[0] for line in lines], errors="return")
    wrong = [
        n for n, (line, given) in enumerate(zip(lines, answers, strict=True), 1) if line.partition("=")[2] != given
    ]
    assert 1000 < len(wrong) < len(lines) - 1000
    return wrong


@pytest.mark.parametrize("pack", [bytes, lzma.compress])
def test_exact_answers_are_counted(octavo, exported, lines, counted, tmp_path, pack):
    file, out = tmp_path / "lines", tmp_path / "wrong.jsonl"
    file.write_bytes(pack("\n".join(lines).encode()))
    args = ("eval", "polynomials", "--data", file, "--model", exported, "-o", out)
    found = json.loads(octavo(*args, "--mistakes", 5, "--json").stdout)
    exact = len(lines) - len(counted)
    assert (found["lines"], found["exact"], found["failed"]) == (len(lines), exact, 1)
    assert found["exact_share"] == exact / len(lines)
    kinds = found["by_kind"]
    assert [sum(kind[name] for kind in kinds.values()) for name in ("lines", "exact")] == [len(lines), exact]
    assert kinds["other"] == {"lines": 1, "exact": 0}
    wrong = [json.loads(row) for row in out.read_text().splitlines()]
    assert [row["line"] for row in wrong] == counted and found["mistakes"] == wrong[:5]
    for row in wrong[:-1]:
        assert f"{row['left']}={row['right']}" == lines[row["line"] - 1] and row["given"] != row["right"]
    assert wrong[-1]["reason"] == "33 characters; accepted are 1 to 32" and "given" not in wrong[-1]
    text = octavo(*args, "--mistakes", 1).stdout
    assert f"{exact / len(lines):.3%}: {exact:,} of {len(lines):,} lines" in text
    assert f"line {counted[0]}: {lines[counted[0] - 1]}, answered" in text and "1 lines, counted as wrong" in text


def test_a_pipe_is_evaluated(octavo, exported, lines, counted, tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    feed = threading.Thread(target=lambda: fifo.write_text("\n".join(lines)))
    feed.start()
    found = json.loads(octavo("eval", "polynomials", "--data", fifo, "--model", exported, "--json").stdout)
    feed.join(10)
    assert found["exact"] == len(lines) - len(counted)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "lines: there are no lines"),
        (b"x=x\nx\n", "lines: line 2: 0 '='"),
        (b"x=x\nx=Q\n", "lines: line 2: column 3: unknown character 'Q'"),
        (b"x=x\nx=\xff\n", "lines: line 2: column 3: broken UTF-8"),
        (lzma.compress(b"x=x\n") + b"y", "compressed data is damaged or cut off"),
    ],
)
def test_files_that_are_no_lines_are_refused_and_nothing_is_written(octavo, exported, tmp_path, content, reason):
    file, out = tmp_path / "lines", tmp_path / "wrong.jsonl"
    file.write_bytes(content)
    result = octavo("eval", "polynomials", "--data", file, "--model", exported, "-o", out, code=2)
    assert reason in result.stderr and result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == [file]
    octavo("eval", "polynomials", "--data", tmp_path / "absent", "--model", exported, code=2)
    assert "--mistakes is -1" in octavo("eval", "polynomials", "--data", file, "--mistakes", "-1", code=2).stderr


def test_torch_and_sympy_are_not_loaded(exported, tmp_path):
    (tmp_path / "lines").write_text("x=x\n")
    args = ["eval", "polynomials", "--data", str(tmp_path / "lines"), "--model", str(exported)]
    code = f"import sys; from octavo.cli import app; app({args}, standalone_mode=False)"
    code += "; print([name for name in ('torch', 'sympy') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_memory_does_not_grow_with_the_file(exported, tmp_path):
    code = f"""
import os, resource
from octavo.lab.polynomials.native_engine import Engine
from octavo.lab.polynomials.evaluate import evaluate
engine, peaks = Engine.load({str(exported)!r}), []
for count in (20_000, 200_000):
    with open({str(tmp_path / "lines")!r}, "w") as file:
        file.writelines("x=x\\n" for _ in range(count))
    assert evaluate(engine, file.name).lines == count
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
assert peaks[1] - peaks[0] < 10_000, peaks
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.slow
def test_the_shipped_model_is_as_good_as_is_said(octavo, shared):
    """99.69 % of the 200,000 lines of the public exercise."""
    data = shared / "data" / "polynomials_200k.txt.xz"
    found = json.loads(octavo("eval", "polynomials", "--data", data, "--json").stdout)
    assert found["lines"] == 200_000 and abs(found["exact"] - 199_379) <= 10  # kernels may round the last bit apart


def test_mistakes_never_take_the_place_of_the_lines(octavo, tmp_path):
    data, link = tmp_path / "lines.txt", tmp_path / "link"
    data.write_text("(x+1)*(x-2)=x**2-x-2\n")
    link.symlink_to(data)
    for out in (data, link):
        told = octavo("eval", "polynomials", "--data", data, "-o", out, code=2).output
        assert "the file of --data" in told and data.read_text() == "(x+1)*(x-2)=x**2-x-2\n"


# --- models of texts ------------------------------------------------------------------------------------------------


def test_models_of_transformers_are_measured_by_what_they_are(octavo, tmp_path):
    """A decoder, a classifier and an encoder with random weights: each number is that of octavo.evaluate."""
    transformers = pytest.importorskip("transformers")
    import octavo as package
    import torch

    words = [*"abcdefgh"]
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    tokenizer = transformers.BertTokenizer(str(vocabulary), model_max_length=32)
    small = {"vocab_size": 13, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
             "intermediate_size": 16, "max_position_embeddings": 32}  # fmt: skip
    torch.manual_seed(0)
    config = transformers.BertConfig(**small, num_labels=2, id2label={0: "no", 1: "yes"}, label2id={"no": 0, "yes": 1})
    made = {
        "decoder": transformers.GPT2LMHeadModel(
            transformers.GPT2Config(vocab_size=13, n_positions=16, n_embd=16, n_layer=1, n_head=2)
        ),
        "classifier": transformers.BertForSequenceClassification(config),
        "encoder": transformers.BertModel(config),
    }
    for name, model in made.items():
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    text, labelled = tmp_path / "text.txt", tmp_path / "labelled.tsv"
    text.write_text("a b c d e f g h " * 9 + "\n" + "h g f e")
    labelled.write_text("a b c\tyes\nd e\tno\nf f f f\tyes\n")

    found = json.loads(octavo("eval", tmp_path / "decoder", "--data", text, "--json").stdout)
    ids = tokenizer(text.read_text(), add_special_tokens=False)["input_ids"]
    assert found["metric"] == "perplexity" and found["count"] == len(ids) - 1 and found["setup"]["context"] == 16
    assert found["value"] == pytest.approx(package.evaluate(made["decoder"], ids).value, rel=1e-6)
    half = json.loads(
        octavo("eval", tmp_path / "decoder", "--data", text, "--context", 8, "--stride", 4, "--json").stdout
    )
    assert half["setup"]["stride"] == 4 and half["value"] != found["value"]

    found = json.loads(octavo("eval", tmp_path / "classifier", "--data", labelled, "--json").stdout)
    data = package.data.read_labelled(labelled, config.label2id)
    assert data.labels == (1, 0, 1)
    assert found["value"] == package.evaluate(made["classifier"], data, tokenizer=tokenizer).value

    octavo("pack", tmp_path / "encoder", "-o", tmp_path / "packed", "--recipe", "mxint8")
    args = ("eval", tmp_path / "packed", "--against", tmp_path / "encoder", "--data", labelled)
    found = json.loads(octavo(*args, "--json").stdout)
    assert found["metric"] == "cosine" and found["count"] == 3 and 0.99 < found["value"] < 1
    assert "cosine" in octavo(*args).stdout

    assert "--against" in octavo("eval", tmp_path / "encoder", "--data", text, code=2).output
    assert "3 columns" in octavo("eval", tmp_path / "classifier", "--data", _file(tmp_path, "x\ty\tz"), code=2).output
    assert "are of polynomials" in octavo("eval", tmp_path / "decoder", "--data", text, "--beam", 2, code=2).output


def _file(folder, content):
    (folder / "other.tsv").write_text(content)
    return folder / "other.tsv"

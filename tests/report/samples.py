"""Reports as octavo compress writes them, of models that nobody made."""

import math
import random

FORMATS = ("int3:g32", "mxfp4", "nf4", "int4:g32", "nvfp4", "mxfp6e2m3", "int6:g32", "mxint8")
BITS = (3.5, 4.25, 4.5, 4.5, 4.5, 6.25, 6.5, 8.25)
ROLES = (("attention.self.query", 384, 384), ("attention.self.key", 384, 384), ("attention.self.value", 384, 384),
         ("attention.output.dense", 384, 384), ("intermediate.dense", 1536, 384), ("output.dense", 384, 1536))  # fmt: skip


def value(at, half=None, **more):
    """A value with its interval."""
    return {"value": at, **({} if half is None else {"low": at - half, "high": at + half}), **more}


def compression(blocks=6, formats=FORMATS, seed=0):
    """A report with every part, of an encoder with ``blocks`` blocks of six layers."""
    draw = random.Random(seed)
    bits_of = {name: BITS[at % len(BITS)] for at, name in enumerate(formats)}
    layers, groups, losses, chosen = [], [], [], []
    for path, shape in [("embeddings.word_embeddings.weight", [30522, 384]), ("embeddings.position_embeddings.weight", [512, 384])]:  # fmt: skip
        layers.append(layer(path, shape, "nf4", 4.5, draw))
    for block in range(blocks):
        for role, rows, columns in ROLES:
            choice = draw.choice(formats)
            layers.append(layer(f"encoder.layer.{block}.{role}.weight", [rows, columns], choice, bits_of[choice], draw))
            groups.append({"name": f"encoder.layer.{block}.{role}", "paths": [layers[-1]["path"]], "parameters": rows * columns})  # fmt: skip
            losses.append([math.exp(-1.3 * bits_of[name] + draw.gauss(0, 0.5)) for name in formats])
            chosen.append(choice)
    layers.append(layer("encoder.norm.weight", [384], None, 32.0, draw))
    losses[0][-1] = None
    points = []
    for at in range(24):
        bits = 3.5 + at * 0.2
        loss = math.exp(1.4 - 1.25 * bits)
        point = {"series": "front", "label": f"{bits:.2f} bits", "bytes": int(22.7e6 * bits / 8), "bits": bits,
                 "predicted": loss, "chosen": at == 5, "knee": at in (3, 9)}  # fmt: skip
        if at % 2:
            point |= {"measured": value(0.8842 - 0.4 * loss - draw.random() / 400, 0.006, count=872), "measured_loss": loss * draw.uniform(0.8, 1.3)}  # fmt: skip
        points.append(point)
    for name, bits in bits_of.items():
        points.append({"series": "uniform", "label": name, "bytes": int(22.7e6 * bits / 8), "bits": bits, "predicted": math.exp(1.9 - 1.25 * bits),
                       "measured": value(0.8842 - 0.6 * math.exp(1.9 - 1.25 * bits), 0.006, count=872), "measured_loss": math.exp(1.9 - 1.2 * bits)})  # fmt: skip
    pairs = [{"label": p["label"], "predicted": p["predicted"], "measured": p["measured_loss"]} for p in points if p.get("measured_loss")]  # fmt: skip
    before, after = [int(draw.random() < 0.8842) for _ in range(872)], []
    after = [one if draw.random() < 0.98 else 1 - one for one in before]
    return {
        "schema": "octavo.report", "version": 1, "kind": "compression", "created": "2026-11-23T14:50:00+00:00",
        "model": {"name": "minilm", "class": "BertForSequenceClassification", "task": "sentiment of SST-2 sentences", "parameters": 22_713_986, "quantized_parameters": 22_700_000},
        "verdict": {"goal": "average bits", "limit": 4.5, "unit": "bits", "reached": 4.43, "met": True, "measures": "accuracy on labelled texts"},
        "metrics": [
            {"key": "accuracy", "label": "accuracy", "unit": "share", "better": "higher", "before": value(0.8842, 0.021, count=872), "after": value(0.8819, 0.021, count=872),
             "difference": value(-0.0023, 0.0058), "split": "test", "others": {"best uniform: nf4": value(0.8727, 0.022), "ggml Q4_K": value(0.8761, 0.022)},
             "examples": {"id": "ab" * 32, "before": before, "after": after}},
            {"key": "kl", "label": "KL of logits", "unit": "nats", "better": "lower", "before": value(0.0), "after": value(0.0121, 0.002, count=872), "split": "test"},
        ],
        "costs": [
            {"key": "file_bytes", "label": "file", "unit": "B", "better": "lower", "before": value(90_868_376), "after": value(12_591_104), "others": {"best uniform: nf4": value(12_800_000), "ggml Q4_K": value(13_100_000)}},
            {"key": "bits_all", "label": "bits of all parameters", "unit": "bits", "better": "lower", "before": value(32.0), "after": value(4.43), "others": {"best uniform: nf4": value(4.51), "ggml Q4_K": value(4.6)}},
            {"key": "bits_quantized", "label": "bits of quantized parameters", "unit": "bits", "better": "lower", "before": value(32.0), "after": value(4.41)},
            {"key": "peak_bytes", "label": "peak memory", "unit": "B", "better": "lower", "before": value(154_190_000), "after": value(36_020_000), "told": "a fresh process, eight sentences at a time"},
            {"key": "latency_1", "label": "latency, batch 1", "unit": "s", "better": "lower", "interval": "IQR", "before": {"value": 0.00852, "low": 0.0083, "high": 0.0091, "count": 50}, "after": {"value": 0.00471, "low": 0.0046, "high": 0.0049, "count": 50}},
            {"key": "latency_32", "label": "latency, batch 32", "unit": "s", "better": "lower", "interval": "IQR", "before": {"value": 0.152, "low": 0.149, "high": 0.158, "count": 20}, "after": {"value": 0.161, "low": 0.158, "high": 0.166, "count": 20}},
        ],
        "front": {"metric": {"label": "accuracy", "unit": "share", "better": "higher", "before": 0.8842}, "loss": {"label": "KL of logits", "unit": "nats"}, "points": points},
        "prediction": {"unit": "nats", "label": "KL of logits", "pairs": pairs, "rank_correlation": 0.971, "method": "additive"},
        "changed": {"count": 872, "worse": 14, "better": 4, "rows": [
            {"text": f"a film that takes {number} hours", "before": "positive", "after": "negative", "expected": "positive"} for number in range(10)]},
        "sensitivity": {"measure": "KL of logits", "unit": "nats", "samples": 64, "tokens": 32, "formats": list(formats), "groups": groups, "loss": losses, "chosen": chosen,
                        "fast": {"measure": "Fisher", "rank_correlation": 0.93}},
        "layers": layers,
        "histograms": [histogram(layers[2]["path"], "int3:g32", 8, draw), histogram(layers[5]["path"], "nf4", 16, draw), histogram(layers[-2]["path"], "mxint8", 255, draw)],
        "rejected": [{"what": "int3:g32 for all layers", "why": "accuracy 7 points below the original", "bytes": 9_930_000, "bits": 3.5, "measured": value(0.812)},
                     {"what": "3.70 bits", "why": "outside the budget of accuracy", "bytes": 10_500_000, "bits": 3.7, "measured": value(0.861)}],
        "machine": {"cpu": "AMD EPYC 9B14", "threads": 2, "simd": "avx512", "memory_bytes": 25_769_803_776, "system": "Linux"},
        "versions": {"octavo": "0.5.0", "torch": "2.9.0", "python": "3.11.2"}, "seeds": {"calibration": 0, "order": 0},
        "commands": ["octavo compress --model minilm --budget 4.5 --data sst2/ -o small", "octavo report small"],
        "data": [{"split": "calibration", "source": "64 training sentences", "count": 64, "reads": 1, "digest": "5d" * 32}, {"split": "validation", "source": "training sentences held out", "count": 1000, "reads": 12}, {"split": "test", "source": "sentences of sst2_dev.tsv", "count": 872, "reads": 1}],
        "effort": [{"what": "sensitivity", "value": 43.1, "unit": "s"}, {"what": "evaluations", "value": 12, "unit": ""}],
        "notes": [], "missing": {},
    }  # fmt: skip


def layer(path, shape, name, bits, draw):
    """A row of the table of layers."""
    parameters = math.prod(shape)
    row = {"path": path, "class": "Linear", "shape": shape, "parameters": parameters, "format": name, "bits": bits,
           "bytes": int(parameters * bits / 8), "bytes_before": 4 * parameters, "rule": f"name:{path.removesuffix('.weight')} {name or 'keep'}",
           "told": "in no budget" if name is None else None}  # fmt: skip
    if name is None:
        return row | {"dtype": "float32"}
    return row | {"sqnr_db": 6.02 * (bits - 0.5) + draw.gauss(0, 1), "sensitivity": math.exp(draw.gauss(-6, 1))}


def histogram(path, name, values, draw):
    """A histogram of a bell, with a grid of equal steps."""
    edges = [-0.3 + 0.6 * at / 96 for at in range(97)]
    counts = [int(9000 * math.exp(-0.5 * ((low + 0.003) / 0.07) ** 2) * draw.uniform(0.95, 1.05)) for low in edges[:-1]]
    grid = [-0.28 + 0.56 * at / (values - 1) for at in range(values)]
    return {"path": path, "format": name, "why": "lowest SQNR, 14.2 dB", "edges": edges, "counts": counts, "grid": grid,
            "grid_told": f"{name} times the median scale of its groups", "sqnr_db": 14.2}  # fmt: skip

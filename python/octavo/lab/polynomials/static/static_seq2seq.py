"""The hybrid model in static INT8: the reference that every other implementation is compared with."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from octavo.errors import ContainerError, NonFiniteError
from octavo.lab.polynomials.seq2seq import PAD, HybridSeq2Seq, Seq2Seq, Seq2SeqConfig, State
from octavo.lab.polynomials.seq2seq.key_value_cache import append
from octavo.lab.polynomials.seq2seq.layers import Attention, causal_mask, last, padding_mask, reverse
from octavo.lab.polynomials.static.integer_layers import IntegerGates, IntegerLinear, IntegerLSTM
from octavo.lab.polynomials.static.layout import (
    ACCUMULATOR,
    FORMAT,
    check,
    check_scales,
    check_wide,
    largest,
    linears,
    lstms,
    norms,
    plain,
)
from octavo.lab.polynomials.static.observation import check_hybrid
from octavo.ops.codec import encode
from octavo.tensors import container
from octavo.tensors.packed_tensor import PackedTensor

Tensors = dict[str, Tensor]


class StaticInt8Seq2Seq(HybridSeq2Seq):
    """:class:`HybridSeq2Seq` in static INT8, with the same interface; it generates and is not trained.

    ``tensors``: what :func:`quantize_static` makes and the file of the variant ``integer`` holds, by name: of every
    linear layer ``NAME.weight`` (``int8:channel``), ``NAME.bias`` (int32), ``NAME.input_scale`` (float32) and
    ``NAME.input_bits`` (int32, 8 or 16); of every LSTM
    ``NAME.weight_hh`` (``int8:channel``), ``NAME.table`` (int32 ``[vocabulary, 4 units]``) and ``NAME.state_scale``
    (float32); of every norm ``NAME.weight`` and ``NAME.bias`` (float32).

    Keys and values are rounded to float16, cut at its largest number.

    Raises ContainerError for tensors that are not those of the configuration.
    """

    decoder: IntegerLSTM  # type: ignore[assignment] # the float model has an nn.LSTM here

    def __init__(self, config: Seq2SeqConfig, tensors: Mapping[str, Tensor | PackedTensor]) -> None:
        """Check the tensors and make the layers of them."""
        check(tensors, config)
        with torch.device("meta"):  # no memory, no random numbers: every layer is replaced
            super().__init__(config)
        del self.source_embedding, self.target_embedding  # they are in the tables
        self.tensors = dict(tensors)
        for name in linears(config):
            self.set_submodule(name, IntegerLinear(*self._parts(name, "weight", "bias", "input_scale", "input_bits")))
        for name in lstms(config):
            self.set_submodule(name, IntegerLSTM(*self._parts(name, "weight_hh", "table", "state_scale")))
        for name in norms(config):
            norm = self.get_submodule(name)
            norm.weight, norm.bias = (nn.Parameter(part.clone(), False) for part in self._parts(name, "weight", "bias"))
        self.eval()

    @property
    def wide(self) -> list[str]:
        """The linear layers whose inputs have 16 bits."""
        return [name for name in linears(self.config) if int(plain(self.tensors, f"{name}.input_bits")) == 16]

    def _parts(self, name: str, *parts: str) -> list[Any]:
        return [self.tensors[f"{name}.{part}"] for part in parts]

    def encode(self, source_BS: Tensor) -> Tensors:
        """Return keys and values of every block's cross-attention, the mask, and the decoder's first state."""
        lengths = (source_BS != PAD).sum(1)
        zeros = torch.zeros((len(source_BS), self.config.encoder), device=source_BS.device)
        ahead = self.encoder.forwards(source_BS, zeros, zeros)
        mirrored = self.encoder.backwards(reverse(source_BS[..., None], lengths)[..., 0], zeros, zeros)
        normed = self.memory_norm(torch.cat([ahead, reverse(mirrored, lengths)], -1))
        ends = torch.cat([last(ahead, lengths), last(mirrored, lengths)], -1)
        hidden, cell = self.bridge(ends).chunk(2, -1)
        memory = {"mask": padding_mask(source_BS, PAD), "hidden": hidden.tanh(), "cell": cell}
        for number, block in enumerate(self.blocks):
            memory[f"keys{number}"], memory[f"values{number}"] = _kept(block.cross_attention, normed)
        return memory

    def decode(self, memory: Tensors, tokens_BT: Tensor) -> Tensor:
        """Return logits after each token."""
        x_BTD = self.decoder(tokens_BT, memory["hidden"], memory["cell"])
        keys, values = _kept(self.self_attention, normed := self.self_norm(x_BTD))
        mask = causal_mask(tokens_BT.shape[1], tokens_BT.device)
        x_BTD = x_BTD + self.self_attention(normed, keys, values, mask)
        return self._finish(x_BTD, memory)

    def step(self, tokens_B: Tensor, state: State) -> Tensor:
        """Take in one token a row and return the logits of the next."""
        cache = state.cache
        cache["hidden"], cache["cell"] = self.decoder.step(tokens_B, cache["hidden"], cache["cell"])
        x_B1D = cache["hidden"][:, None]
        keys, values = append(state, 0, *_kept(self.self_attention, normed := self.self_norm(x_B1D)))
        x_B1D = x_B1D + self.self_attention(normed, keys, values)
        state.length += 1
        return self._finish(x_B1D, state.memory)[:, 0]


def _kept(attention: Attention, memory_BSD: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values as they are kept: float16, in float32."""
    most = torch.finfo(torch.float16).max
    keys, values = (part.clamp(-most, most).half().float() for part in attention.project(memory_BSD))
    return keys, values


# --- making one -----------------------------------------------------------------------------------------------------


def quantize_static(model: Seq2Seq, scales: Mapping[str, float], wide: Collection[str] = ()) -> StaticInt8Seq2Seq:
    """Return the static INT8 form of a hybrid model.

    ``scales``: what :func:`calibrate` returns: for every linear layer and every LSTM the step of its int8 inputs.
    ``wide``: linear layers whose inputs get int16 codes instead, with steps a 256th as large; see :func:`costly`.

    Raises DTypeError for another model, FormatError for scales that are missing, unknown, not positive, or different
    for layers that read the same tensor, and for wide layers that are unknown or without the others that read the same,
    NonFiniteError for weights that are not finite.
    """
    check_hybrid(model)
    check_scales(scales, model.config)
    check_wide(wide, model.config)
    weights = {name: tensor.detach().cpu().float() for name, tensor in model.state_dict().items()}
    for name, tensor in weights.items():
        if not tensor.isfinite().all():
            raise NonFiniteError(f"{name} holds NaN or infinity; accepted are finite weights")
    tensors: dict[str, Tensor | PackedTensor] = {}
    for name in linears(model.config):
        bits = 16 if name in wide else 8
        # By a power of two, so that the inverse that is multiplied with scales as exactly.
        scale = torch.tensor(scales[name], dtype=torch.float32) / 2 ** (bits - 8)
        packed, bias = _pack(weights[f"{name}.weight"], weights[f"{name}.bias"].double()[None], scale, bits)
        tensors |= {f"{name}.weight": packed, f"{name}.bias": bias[0], f"{name}.input_scale": scale}
        tensors[f"{name}.input_bits"] = torch.tensor(bits, dtype=torch.int32)
    for name in lstms(model.config):
        scale = torch.tensor(scales[name], dtype=torch.float32)
        packed, table = _pack(weights[f"{name}.weight_hh_l0"], _added(weights, name), scale)
        tensors |= {f"{name}.weight_hh": packed, f"{name}.table": table, f"{name}.state_scale": scale}
    for name in norms(model.config):
        tensors |= {f"{name}.{part}": weights[f"{name}.{part}"] for part in ("weight", "bias")}
    return StaticInt8Seq2Seq(model.config, tensors)


def _added(weights: Tensors, name: str) -> Tensor:
    """Return what each token adds to the gates of an LSTM, float64 ``[V, 4 units]``."""
    embedding = weights["target_embedding.weight" if name == "decoder" else "source_embedding.weight"]
    bias = weights[f"{name}.bias_ih_l0"].double() + weights[f"{name}.bias_hh_l0"].double()
    return embedding.double() @ weights[f"{name}.weight_ih_l0"].double().T + bias


def _pack(weight: Tensor, added_VR: Tensor, scale: Tensor, bits: int = 8) -> tuple[PackedTensor, Tensor]:
    """Return ``int8:channel`` of ``weight`` and ``added_VR`` in units of the accumulators, int32.

    A row whose weights are tiny beside what is added to it (a pruned row, say) would need more than 32 bits for that;
    it gets a larger scale, at which its weights round to 0 and the rest is kept.
    """
    packed = encode(weight, FORMAT)
    room = ACCUMULATOR - largest(bits) * largest() * weight.shape[1]
    least = (added_VR.abs().amax(0) / (scale.double() * (room - 1))).float() * (1 + 2**-20)
    if (packed.scales[:, 0] < least).any():
        packed = encode(weight, FORMAT, scales=packed.scales.maximum(least[:, None]))
    steps = scale.double() * packed.scales[:, 0].double()
    return packed, torch.where(steps > 0, added_VR / steps, 0).round().to(torch.int32)


# --- looking inside -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Accumulation:
    """One call of an integer layer: its float32 input, its int32 sums, and for the gates of an LSTM the tokens."""

    name: str
    input: Tensor
    accumulators: Tensor
    tokens: Tensor | None = None


@torch.no_grad()
def accumulators(model: StaticInt8Seq2Seq, source_BS: Tensor, target_BT: Tensor) -> list[Accumulation]:
    """Return every call of an integer layer in ``model(source, target)``, in order; LSTMs are called once a position.

    The sums are functions of the inputs that stand beside them, bit for bit; inputs themselves come out of float32
    arithmetic, whose last bits differ between implementations. Raises as :meth:`Seq2Seq.forward`.
    """
    found: list[Accumulation] = []

    def watch(name: str, module: IntegerLinear | IntegerGates) -> Any:
        def hook(_: nn.Module, inputs: tuple[Tensor, ...], __: Tensor) -> None:
            *tokens, x = inputs
            sums = module.accumulate(*inputs)
            found.append(Accumulation(name, x.clone(), sums, tokens[0].clone() if tokens else None))

        return module.register_forward_hook(hook)

    kinds = IntegerLinear | IntegerGates
    layers = [(name.removesuffix(".gates"), layer) for name, layer in model.named_modules() if isinstance(layer, kinds)]
    hooks = [watch(name, layer) for name, layer in layers]
    try:
        model(source_BS, target_BT)
    finally:
        for hook in hooks:
            hook.remove()
    return found


# --- the file: the variant ``integer`` of a model folder -------------------------------------------------------------


def save(model: StaticInt8Seq2Seq, path: str | os.PathLike[str]) -> None:
    """Write the tensors of an integer model; the file appears complete or not at all. Raises OSErrors."""
    container.save(model.tensors, path)


def load(path: str | os.PathLike[str], config: Seq2SeqConfig) -> StaticInt8Seq2Seq:
    """Return the integer model of ``config`` whose tensors a file holds.

    Raises ContainerError for a file that is none or holds other tensors, OSErrors.
    """
    tensors = container.load(path)
    try:
        return StaticInt8Seq2Seq(config, tensors)
    except ContainerError as error:
        raise ContainerError(f"{os.fspath(path)}: {error}") from None

"""Operators: kernels of few numbers for any length, horizons of one head."""

import pytest
import torch
from lab.language.gpt.mixer_parts import WIDTH, mixer_of, mixing_context
from octavo.lab.language.gpt import GPT, Attention, GPTConfig, LagKernel, OperatorHorizons, OperatorKernel, contracts
from octavo.lab.language.gpt.lag_kernel import LagKernelMixer
from octavo.lab.language.gpt.mixing_context import MixingContext
from octavo.lab.language.gpt.multi_token import further_targets
from octavo.lab.language.gpt.operator_mixer import OperatorMixer

KERNELS = [OperatorKernel(modes=4), OperatorKernel(kernel="mlp", modes=3, hidden=8)]


@pytest.mark.parametrize("config", KERNELS, ids=lambda one: one.kernel)
@torch.no_grad()
def test_an_operator_is_the_direct_sum_over_lags_and_its_steps(config):
    mixer, x = mixer_of(OperatorMixer, config), torch.randn(2, 13, WIDTH)
    kernel, value = mixer.kernel(13), mixer.value(x)
    wanted = torch.stack([sum(kernel[:, lag] * value[:, at - lag] for lag in range(at + 1)) for at in range(13)], 1)
    wanted = mixer.out(wanted * torch.nn.functional.silu(mixer.gate(x)))
    assert torch.allclose(mixer(x, mixing_context(13)), wanted, atol=1e-5)
    state = mixer.first_state(2, x.device)
    for at in range(13):
        out, state = mixer.step(x[:, at], state, MixingContext(torch.tensor([at])))
        assert torch.allclose(out, wanted[:, at], atol=1e-5)


@pytest.mark.parametrize("config", KERNELS, ids=lambda one: one.kernel)
@torch.no_grad()
def test_a_longer_sequence_uses_the_same_kernel(config):
    mixer = mixer_of(OperatorMixer, config)
    assert torch.allclose(mixer.kernel(700)[:, :50], mixer.kernel(50), atol=1e-6)
    assert float(mixer.kernel(100_000)[:, -1].abs().max()) < 1e-3  # and it fades


@torch.no_grad()
def test_channels_share_the_modes_so_that_kernels_have_their_rank():
    own, shared = mixer_of(LagKernelMixer, LagKernel(modes=3)), mixer_of(OperatorMixer, OperatorKernel(modes=3))
    for parameter in (own.decay, own.angle):
        parameter.add_(0.3 * torch.randn_like(parameter))
    ranks = [int(torch.linalg.matrix_rank(mixer.kernel(64).double(), rtol=1e-5)) for mixer in (own, shared)]
    assert ranks[0] > 3 and ranks[1] <= 3


@torch.no_grad()
def test_the_error_of_a_kernel_falls_with_its_modes():
    """Of ``1 / (1 + lag)``, by the best amplitudes of modes that decay and do not turn."""
    lags = torch.arange(256, dtype=torch.float32)
    wanted, errors = 1 / (1 + lags), []
    for modes in (1, 2, 4, 8):
        mixer = mixer_of(OperatorMixer, OperatorKernel(modes=modes))
        mixer.angle.zero_()
        waves = mixer.waves(lags).T.double()
        best = torch.linalg.lstsq(waves, wanted.double()[:, None]).solution
        errors.append(float((waves @ best - wanted.double()[:, None]).norm()))
    assert errors == sorted(errors, reverse=True) and errors[-1] < 0.2 * errors[0]


# --- horizons ---------------------------------------------------------------------------------------------------------


def horizons(**fields):
    torch.manual_seed(0)
    return GPT(GPTConfig(
        vocabulary=61, width=32, pattern="aa", mixers={"a": Attention(heads=4)}, end_of_text=0,
        objective=OperatorHorizons(**fields),
    ))  # fmt: skip


def test_horizons_are_the_head_on_turned_states_and_exact_shifts():
    model = horizons(ahead=3, weight=0.4)
    with torch.no_grad():
        model.objective.tau_JD.add_(torch.randn(2, 32))
    ids, targets = contracts.example_batch()
    hidden, wanted = model.hidden(ids), model.nll(ids, targets).sum()
    for further, tau in enumerate(model.objective.tau_JD, 1):
        later = further_targets(targets, further, 0)
        logs = model.head.log_probs((hidden * tau).flatten(0, 1)).view(*ids.shape, -1)
        rows = [
            -logs[row, at, later[row, at]]
            for row in range(2) for at in range(ids.shape[1]) if later[row, at] >= 0
        ]  # fmt: skip
        wanted = wanted + 0.2 * torch.stack(rows).sum()
    assert float(model(ids, targets)[0]) == pytest.approx(float(wanted), rel=1e-5)


def test_a_horizon_costs_a_vector_and_one_horizon_is_the_plain_model():
    plain = sum(p.numel() for p in horizons(ahead=1).parameters())
    assert sum(p.numel() for p in horizons(ahead=4).parameters()) == plain + 3 * 32
    ids, targets = contracts.example_batch()
    first, _ = horizons(ahead=3, weight=0.0)(ids, targets)
    assert float(first.detach()) == float(horizons(ahead=1)(ids, targets)[0].detach())

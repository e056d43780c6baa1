"""`octavo.lab.mase` against recorded outputs of MASE, and small values worked by hand.

The recordings lie outside the repository: in the folder that OCTAVO_TEST_SHARED names, else in `shared` beside it.
"""

import json
import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from octavo.errors import DTypeError, FormatError, ShapeError
from octavo.lab import mase

LINEAR_RTOL = 1e-5
"""Matrix products add in an order that belongs to the BLAS library."""

SCALE_GRADIENT_RTOL = 1e-6
"""LSQ's gradient of s is a sum over x in torch's order, times a power whose last bit depends on torch's version."""

SOFTERMAX_RTOL = 1e-6
"""Non-integer powers of two and their sum: the last bit is torch's."""


def vectors_dir() -> Path:
    root = os.environ.get("OCTAVO_TEST_SHARED")
    shared = Path(root) if root else Path(__file__).resolve().parents[3] / "shared"
    return shared / "vectors"


class Recordings:
    """The `.npz` files of MASE's outputs with the parameters of their cases."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.index = json.loads((folder / "index.json").read_text())

    def load(self, name: str) -> tuple[dict[str, np.ndarray], dict]:
        with np.load(self.folder / f"{name}.npz", allow_pickle=False) as arrays:
            return dict(arrays), self.index[f"{name}.npz"]["cases"]


@pytest.fixture(scope="module")
def mase_vectors() -> Recordings:
    folder = vectors_dir() / "mase"
    if not (folder / "index.json").is_file():
        pytest.skip(f"MASE's recorded outputs are not at {folder}; set OCTAVO_TEST_SHARED to the folder of vectors/")
    return Recordings(folder)


@pytest.fixture(scope="module")
def log2_as_recorded(mase_vectors) -> bool:
    """Whether torch's float32 log2 rounds here as it did where the outputs were recorded."""
    arrays, _ = mase_vectors.load("log2_edge")
    log2 = torch.log2(torch.from_numpy(arrays["x"]).abs())
    return bool(
        (log2.floor().numpy() == arrays["floor_log2_torch"]).all()
        and (log2.ceil().numpy() == arrays["ceil_log2_torch"]).all()
    )


def bits_differ(got: torch.Tensor, want: np.ndarray) -> np.ndarray:
    """Where the two differ, with NaN equal to NaN and +0 to -0."""
    got = got.detach().numpy()
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    return ~((got == want) | (np.isnan(got) & np.isnan(want)))


def assert_none_differ(differences: dict[str, np.ndarray]) -> None:
    assert differences
    assert {key: int(where.sum()) for key, where in differences.items() if where.any()} == {}


# --- recorded outputs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "quantizer"),
    [
        ("integer", mase.integer_quantizer),
        ("integer_floor", mase.integer_floor_quantizer),
        ("minifloat_denorm", mase.minifloat_denorm_quantizer),
        ("minifloat_ieee", mase.minifloat_ieee_quantizer),
        ("log", mase.log_quantizer),
    ],
)
def test_elementwise_quantizers_equal_recorded_outputs(mase_vectors, log2_as_recorded, name, quantizer):
    arrays, cases = mase_vectors.load(name)
    x, special = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["x_special"])
    differences = {}
    for key, settings in cases.items():
        got = quantizer(x, **settings)
        differences[key] = bits_differ(got, arrays[key])
        if f"{key}__edge_idx" in arrays and not log2_as_recorded:
            edge = arrays[f"{key}__edge_idx"]
            differences[key][edge] &= bits_differ(got[edge], arrays[f"{key}__edge_exact"])
        differences[f"{key}__special"] = bits_differ(quantizer(special, **settings), arrays[f"{key}__special"])
    assert_none_differ(differences)


def test_exponents_near_powers_of_two_equal_recorded_outputs(mase_vectors, log2_as_recorded):
    arrays, cases = mase_vectors.load("log2_edge")
    x, blocks = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["blocks"])
    block = {"block_size": [1, 16]}
    got = {
        "block_fp_w8_e8_bs16": mase.block_fp_quantizer(blocks, 8, 8, **block),
        "block_minifloat_w8_e4_eb8_bs16": mase.block_minifloat_quantizer(blocks, 8, 4, 8, **block),
        "block_log_w8_eb8_bs16": mase.block_log_quantizer(blocks, 8, 8, **block),
        "mxint8_bs16": mase.mxint_quantizer(blocks, 16, 8),
        "mxint4_bs16": mase.mxint_quantizer(blocks, 16, 4),
        "mxfp_e4m3_bs16": mase.mxfp_quantizer(blocks, 16, 4, 3),
        "mxfp_e2m1_bs16": mase.mxfp_quantizer(blocks, 16, 2, 1),
    }
    for key, settings in cases.items():
        if key.startswith("denorm_"):
            got[key] = mase.minifloat_denorm_quantizer(x, **settings)
        elif key.startswith("ieee_"):
            got[key] = mase.minifloat_ieee_quantizer(x, **settings)
    assert set(got) == {key for key in cases if "log2_" not in key}
    differences = {}
    for key, values in got.items():
        differences[key] = bits_differ(values, arrays[key])
        if not log2_as_recorded:
            differences[key] &= bits_differ(values, arrays[f"{key}__exact"])
    assert_none_differ(differences)


@pytest.mark.parametrize(
    ("name", "quantizer"),
    [
        ("scale_integer", mase.scale_integer_quantizer),
        ("block_fp", mase.block_fp_quantizer),
        ("block_minifloat", mase.block_minifloat_quantizer),
        ("block_log", mase.block_log_quantizer),
        ("mxint", mase.mxint_quantizer),
    ],
)
def test_scaled_quantizers_equal_recorded_outputs(mase_vectors, name, quantizer):
    arrays, cases = mase_vectors.load(name)
    differences = {}
    for key, settings in cases.items():
        settings = dict(settings)
        x = torch.from_numpy(arrays[settings.pop("input")])
        differences[key] = bits_differ(quantizer(x, **settings), arrays[key])
    assert_none_differ(differences)


def test_mxint_hardware_equals_recorded_outputs(mase_vectors):
    arrays, cases = mase_vectors.load("mxint_hardware")
    differences = {}
    for key, settings in cases.items():
        widths = {name: settings[name] for name in ("width", "exponent_width")}
        got = mase.mxint_hardware(torch.from_numpy(arrays[settings["input"]]), widths, settings["parallelism"])
        differences[key] = bits_differ(got, arrays[key])
    assert_none_differ(differences)


def test_mxfp_values_scales_and_codes_equal_recorded_outputs(mase_vectors):
    arrays, cases = mase_vectors.load("mxfp")
    differences = {}
    for key, settings in cases.items():
        settings = dict(settings)
        x = torch.from_numpy(arrays[settings.pop("input")])
        differences[key] = bits_differ(mase.mxfp_quantizer(x, **settings), arrays[key])
        scales, elements = mase.extract_mxfp_components(x, **settings)
        differences[f"{key} scales"] = bits_differ(scales, arrays[f"{key}__scale_u8"])
        differences[f"{key} codes"] = bits_differ(elements.to(torch.uint8), arrays[f"{key}__code_u8"])
    assert_none_differ(differences)


def test_minifloat_codes_and_values_equal_recorded_outputs(mase_vectors):
    arrays, cases = mase_vectors.load("minifloat_mx")
    x, special = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["x_special"])
    differences = {}
    for key, settings in cases.items():
        layout = {name: settings[name] for name in ("exp_bits", "frac_bits", "is_finite")}
        codes = mase.extract_minifloat_component(x, **settings)
        differences[f"{key} codes"] = bits_differ(codes, arrays[f"{key}__code"])
        recorded = torch.from_numpy(arrays[f"{key}__code"])
        differences[key] = bits_differ(mase.compose_minifloat_component(recorded, **layout), arrays[key])
        if f"{key}__special" in arrays:
            values = mase.compose_minifloat_component(mase.extract_minifloat_component(special, **settings), **layout)
            differences[f"{key} special"] = bits_differ(values, arrays[f"{key}__special"])
    assert_none_differ(differences)


def test_blocks_with_special_values_equal_recorded_outputs(mase_vectors):
    arrays, cases = mase_vectors.load("block_special")
    x = torch.from_numpy(arrays["x"])
    block = {"block_size": [1, 32]}
    got = {
        "block_fp_w8_e8": mase.block_fp_quantizer(x, 8, 8, **block),
        "block_minifloat_w8_e4_eb8": mase.block_minifloat_quantizer(x, 8, 4, 8, **block),
        "block_log_w8_eb8": mase.block_log_quantizer(x, 8, 8, **block),
        "mxint8": mase.mxint_quantizer(x, 32, 8),
        "mxint_hardware_w8_e4": mase.mxint_hardware(x, {"width": 8, "exponent_width": 4}, [1, 32]),
        "mxint_hardware_w8_e8": mase.mxint_hardware(x, {"width": 8, "exponent_width": 8}, [1, 32]),
        "mxfp_e4m3_finite_rows_only": mase.mxfp_quantizer(x, 32, 4, 3),
        "mxfp_e5m2_finite_rows_only": mase.mxfp_quantizer(x, 32, 5, 2),
        "mxfp_e2m1_finite_rows_only": mase.mxfp_quantizer(x, 32, 2, 1),
    }
    assert set(got) == set(cases)
    differences = {key: bits_differ(values, arrays[key]) for key, values in got.items()}
    for key, where in differences.items():
        if key.endswith("finite_rows_only"):
            where[:3] = False  # MASE converts inf and NaN to integers there: undefined behaviour
    assert_none_differ(differences)


def test_bfloat16_is_computed_as_recorded(mase_vectors):
    arrays, cases = mase_vectors.load("bf16_inputs")
    x = torch.from_numpy(arrays["x_bf16_bits"].view(np.int16)).view(torch.bfloat16)
    got = {
        "integer_8_4": mase.integer_quantizer(x, 8, 4),
        "minifloat_ieee_8_4": mase.minifloat_ieee_quantizer(x, 8, 4),
        "minifloat_denorm_8_4": mase.minifloat_denorm_quantizer(x, 8, 4),
        "block_fp_8_8_bs32": mase.block_fp_quantizer(x, 8, 8, block_size=[1, 32]),
        "mxint8_bs32": mase.mxint_quantizer(x, 32, 8),
        "mxint4_bs32": mase.mxint_quantizer(x, 32, 4),
        "mxfp_e4m3_bs32": mase.mxfp_quantizer(x, 32, 4, 3),
        "mxfp_e2m1_bs32": mase.mxfp_quantizer(x, 32, 2, 1),
    }
    assert set(got) == set(cases)
    differences = {}
    for key, values in got.items():
        assert values.dtype == torch.bfloat16
        recorded = torch.from_numpy(arrays[key].view(np.int16)).view(torch.bfloat16)
        differences[key] = bits_differ(values.float(), recorded.float().numpy())
    assert_none_differ(differences)


def test_binary_and_ternary_equal_recorded_outputs(mase_vectors):
    arrays, cases = mase_vectors.load("binary_ternary")
    x2, x4 = torch.from_numpy(arrays["x2"]), torch.from_numpy(arrays["x4"])
    uniforms = torch.from_numpy(arrays["stoch_rand_x2"])
    special = torch.tensor([0.0, -0.0, float("nan"), float("inf"), -float("inf")])
    got = {
        "bipolar_x2": mase.binary_quantizer(x2),
        "bipolar_x4": mase.binary_quantizer(x4),
        "bipolar_special": mase.binary_quantizer(special),
        "zeroscaled_x4": mase.binary_quantizer(x4, bipolar=False),
        "bipolarscaled_op_x4": mase.binary_bipolar_scaled(x4),
        "zeroone_op_x2": mase.binary_zero_one(x2),
        "stoch_bipolar_x2": mase.binary_quantizer(x2, stochastic=True, uniforms=uniforms),
        "stoch_zeroscaled_x4": mase.binary_quantizer(x4, stochastic=True, bipolar=False),
        "ternary_x4": mase.ternary_quantizer(x4),
        "ternary_scaled_x4": mase.ternary_quantizer(x4, scaling_factor=True),
    }
    x = x2.clone().requires_grad_()
    got["binarize_x2"] = mase.binarize(x)
    got["binarize_x2"].sum().backward()
    got["binarize_x2_grad"] = x.grad
    for levels in (1, 2, 3):
        x = (x2 / 4).requires_grad_()
        means = torch.from_numpy(arrays[f"resid{levels}_means"]).requires_grad_()
        got[f"resid{levels}_out"] = mase.residual_sign_quantizer(levels, means, x)
        got[f"resid{levels}_out"].backward(torch.from_numpy(arrays[f"resid{levels}_gout"]))
        got[f"resid{levels}_gx"], got[f"resid{levels}_gmeans"] = x.grad, means.grad
    assert set(cases) <= set(got)
    assert_none_differ({key: bits_differ(values, arrays[key]) for key, values in got.items()})


def test_lsq_and_its_gradients_equal_recorded_outputs(mase_vectors):
    arrays, cases = mase_vectors.load("lsq")
    differences = {}
    for key, settings in cases.items():
        x = torch.from_numpy(arrays["x"]).requires_grad_()
        s = torch.tensor(settings["s"], requires_grad=True)
        got = mase.lsq_integer(x, s, settings["level"], settings["sym"])
        got.backward(torch.from_numpy(arrays["gout"]))
        differences[key] = bits_differ(got, arrays[key])
        differences[f"{key}__gx"] = bits_differ(x.grad, arrays[f"{key}__gx"])
        if np.isnan(arrays[f"{key}__gs"]):
            assert s.grad is None
        else:
            np.testing.assert_allclose(s.grad.numpy(), arrays[f"{key}__gs"], rtol=SCALE_GRADIENT_RTOL, err_msg=key)
    assert_none_differ(differences)


def test_linear_layers_equal_recorded_outputs(mase_vectors, log2_as_recorded):
    arrays, cases = mase_vectors.load("linear_modules")
    weight, bias = torch.from_numpy(arrays["weight"]), torch.from_numpy(arrays["bias"])
    for key, config in cases.items():
        layer, _, x = key.partition("__")
        if layer == "LinearMinifloatDenorm" and not log2_as_recorded:
            continue  # inputs and weights hold powers of two, which MASE's guard moves into the edge zone
        layer = layer.removesuffix("_floor_out")
        got = mase.linear_forward(layer, torch.from_numpy(arrays[x]), weight, bias, config)
        np.testing.assert_allclose(got.numpy(), arrays[key], rtol=LINEAR_RTOL, atol=LINEAR_RTOL, err_msg=key)
    stored = {
        "LinearMXFP__qweight": mase.mxfp_quantizer(weight, 16, 4, 3),
        "LinearMXFP__qbias": mase.mxfp_quantizer(bias, 16, 4, 3),
        "LinearMXInt__qweight": mase.mxint_quantizer(weight, 16, 8),
        "LinearMXInt__qbias": mase.mxint_quantizer(bias, 16, 8),
    }
    assert_none_differ({key: bits_differ(values, arrays[key]) for key, values in stored.items()})


def test_tables_flexround_and_softermax_equal_recorded_outputs(mase_vectors):
    arrays, _ = mase_vectors.load("lutnet_logicnets_misc")
    tensors = {key: torch.from_numpy(value) for key, value in arrays.items()}
    got = {f"truth_table_k{k}": mase.generate_truth_table(k) for k in (1, 2, 3, 4)}

    widths = (2, 1, 3, 1)
    weight, bias = tensors["ln_weight"], tensors["ln_bias"]
    for row in (0, 1):
        used = tensors[f"ln_idx{row}"]
        got[f"ln_perm{row}"], got[f"ln_binout{row}"] = mase.logicnets_table(weight[row, used], bias[row], *widths)
    got["ln_out"] = mase.linear_logicnets(tensors["ln_x"], weight, bias, *widths)

    got["fr_qweight"] = mase.flexround_weight(*(tensors[f"fr_{name}"] for name in ("weight", "s1", "S2", "s3")))
    sums = torch.nn.functional.linear(tensors["fr_x"], got["fr_qweight"], tensors["fr_bias"])
    got["fr_out"] = mase.flexround_quantizer(sums, 8, 4)
    got["frq_out"] = mase.flexround_quantizer(tensors["frq_x"], 8, 4)
    got["sm_fixed"] = mase.fixed_softermax(tensors["sm_x"], 8, 4, 8, 7)
    assert_none_differ({key: bits_differ(values, arrays[key]) for key, values in got.items()})

    lut = mase.linear_lut(*(tensors[f"lut_bl1_{name}"] for name in ("x", "weight", "bias", "means", "mask")), k=2)
    np.testing.assert_allclose(lut.numpy(), arrays["lut_bl1_out"], rtol=LINEAR_RTOL)
    np.testing.assert_allclose(mase.softermax(tensors["sm_x"]), arrays["sm_softermax"], rtol=SOFTERMAX_RTOL)


# --- values worked by hand --------------------------------------------------------------------------------------------

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("quantizer", "x", "want"),
    [
        # steps of 1/16: ties to even, saturation at 127/16
        (
            partial(mase.integer_quantizer, width=8, frac_width=4),
            [0.03125, 0.09375, 100, -100, NAN],
            [0, 0.125, 7.9375, -8, NAN],
        ),
        (partial(mase.integer_quantizer, width=4, frac_width=0, is_signed=False), [-3, 2.5, 99], [0, 2, 15]),
        (partial(mase.integer_floor_quantizer, width=8, frac_width=4), [0.1, -0.01], [0.0625, -0.0625]),
        # the scale maps the maximum to 2^(width-1), where it no longer fits
        (partial(mase.scale_integer_quantizer, width=4), [-8, 4, 8], [-8, 4, 7]),
        # E4: the top is 480, rounding up to 2 does not carry, 1e-9 passes, infinity becomes NaN
        (
            partial(mase.minifloat_ieee_quantizer, width=8, exponent_width=4),
            [1e6, 1.99, 0.0029, 1e-9, INF],
            [480, 1.875, 0.001953125, 1e-9, NAN],
        ),
        # no implicit bit: 1 = 8/8 * 2^0 is clipped to 7/8
        (
            partial(mase.minifloat_denorm_quantizer, width=8, exponent_width=4),
            [1, 0.75, -3, 1e6],
            [0.875, 0.75, -3, 224],
        ),
        # powers 2^-3 .. 2^4, thresholds in the log domain, zero is the smallest
        (partial(mase.log_quantizer, width=4), [0, 2.8, 2.9, -100], [0.125, 2, 4, -16]),
        # the exponent of 1 is 0, so that 1 saturates to 127/128
        (partial(mase.block_fp_quantizer, width=8), [1, 0.5, -1], [0.9921875, 0.5, -0.9921875]),
        # a large maximum raises the bias to 9 and thereby lowers the top to 1.875 * 2^6
        (
            partial(mase.block_minifloat_quantizer, width=8, exponent_width=4, exponent_bias_width=8),
            [1000, 1],
            [120, 1],
        ),
        (partial(mase.block_log_quantizer, width=4, exponent_bias_width=8), [16, 3, 0], [16, 4, 0.125]),
        (partial(mase.mxint_quantizer, block_size=3, element_bits=4), [1, -1, 0.3], [0.875, -1, 0.25]),
        (partial(mase.mxint_quantizer, block_size=2, element_bits=4), [0, -0.0], [0, 0]),
        # 1.97 carries into an even exponent code and is halved at an odd one
        (partial(mase.mxfp_quantizer, block_size=2, element_exp_bits=4, element_frac_bits=3), [256, 3.94], [256, 4]),
        (partial(mase.mxfp_quantizer, block_size=2, element_exp_bits=4, element_frac_bits=3), [256, 1.97], [256, 1]),
        # exponent 0 - 2^3 for 8 bits of scale; rounding down leaves small negative values at -1 step
        (
            partial(mase.mxint_hardware, q_config={"width": 8, "exponent_width": 4}, parallelism=[4]),
            [1, 0.5, 0.003, -0.001],
            [0.49609375, 0.49609375, 0, -0.00390625],
        ),
        (mase.binary_quantizer, [0, -0.0, 3, -2, NAN], [1, 1, 1, -1, -1]),
        (mase.binarize, [0, 3, -0.5], [0, 1, -1]),
        (partial(mase.flexround_quantizer, width=4, frac_width=0), [0.5, -0.5, 99], [1, 0, 7]),
        # 2^(x - floor(max)): 2, 1, 1
        (mase.softermax, [1, 0, 0], [0.5, 0.25, 0.25]),
    ],
)
def test_small_values_worked_by_hand(quantizer, x, want):
    assert not bits_differ(quantizer(torch.tensor(x, dtype=torch.float32)), np.float32(want)).any()


def test_ternary_levels_worked_by_hand():
    x = torch.tensor([4.0, -2.0, 1.5, -0.5]).reshape(1, 1, 2, 2)  # mean 2, threshold 1.5, not above it
    assert mase.ternary_quantizer(x).flatten().tolist() == [1, -1, 0, 0]
    assert mase.ternary_quantizer(x, scaling_factor=True).flatten().tolist() == [3, -3, 0, 0]
    assert mase.ternary_quantizer(torch.zeros(1, 1, 1, 2), scaling_factor=True).isnan().all()


def test_residual_levels_start_from_falling_means():
    levels = mase.residual_sign_quantizer(2, None, torch.tensor([1.0, 0.1]))
    torch.testing.assert_close(levels, torch.tensor([[2 / 3, 2 / 3], [1 / 3, -1 / 3]]))


def test_stochastic_binary_draws_plus_one_with_probability_of_x():
    torch.manual_seed(0)
    drawn = mase.binary_quantizer(torch.full((20_000,), 0.5), stochastic=True)
    assert abs(drawn.mean().item() - 0.5) < 0.05


@pytest.mark.parametrize(("exp_bits", "frac_bits"), [(4, 3), (5, 2), (2, 3), (3, 2), (2, 1), (1, 2), (5, 10)])
def test_codes_of_normal_values_come_back(exp_bits, frac_bits):
    codes = torch.arange(1 << (1 + exp_bits + frac_bits))
    normal = codes[(codes >> frac_bits) & ((1 << exp_bits) - 1) != 0]
    values = mase.compose_minifloat_component(normal, exp_bits, frac_bits)
    assert torch.equal(mase.extract_minifloat_component(values, exp_bits, frac_bits).long(), normal)


@pytest.mark.parametrize(("mode", "want"), [("rn", 1.25), ("ru", 1.25), ("rd", 1.125), ("rz", 1.125)])
def test_rounding_modes_act_on_magnitudes(mode, want):
    x = torch.tensor([1.2, -1.2])
    values = mase.compose_minifloat_component(mase.extract_minifloat_component(x, 4, 3, round_mode=mode), 4, 3)
    assert values.tolist() == [want, -want]


def test_block_dimensions_that_are_not_named_are_whole():
    x = torch.rand(40, 20, generator=torch.Generator().manual_seed(0))
    whole = mase.block_fp_quantizer(x, 4, block_size=[-1, 8])
    assert torch.equal(mase.block_fp_quantizer(x, 4, block_size=8), whole)
    assert torch.equal(
        mase.block_fp_quantizer(x, 4, block_size=[3, 99, 8]), mase.block_fp_quantizer(x, 4, block_size=[40, 8])
    )
    assert not torch.equal(mase.block_fp_quantizer(x, 4, block_size=[1, 8]), whole)


def test_microscaling_blocks_straddle_rows():
    x = torch.tensor([[64.0, 0.3, 0.3], [0.3, 0.3, 0.3]])
    assert mase.mxint_quantizer(x, block_size=6, element_bits=4).tolist() == [[56, 0, 0], [0, 0, 0]]


def test_quantile_search_never_increases_the_error():
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(0)) ** 3
    plain = (mase.mxint_quantizer(x, 32, 4) - x).square().sum(dim=1)
    searched = (mase.mxint_quantizer(x, 32, 4, quantile_search=True) - x).square().sum(dim=1)
    assert (searched <= plain).all()
    assert (searched < plain).any()


def test_truth_table_counts_upwards_with_the_first_input_highest():
    assert mase.generate_truth_table(2).tolist() == [[-1, -1, 1, 1], [-1, 1, -1, 1]]


def test_looked_up_logic_equals_the_layer_in_fixed_point():
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(*shape, generator=generator) for shape in ((50, 6), (4, 6), (4,)))
    weight[:, ::3] = 0
    computed = torch.nn.functional.linear(mase.integer_quantizer(x, 3, 1), weight, bias)
    looked_up = mase.linear_logicnets(x, weight, bias, 3, 1, 5, 2)
    assert torch.equal(looked_up, mase.integer_quantizer(computed, 5, 2))


# --- gradients --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "quantizer",
    [
        partial(mase.integer_quantizer, width=4, frac_width=2),
        partial(mase.integer_floor_quantizer, width=4, frac_width=2),
        partial(mase.scale_integer_quantizer, width=4),
        partial(mase.minifloat_denorm_quantizer, width=6, exponent_width=2),
        partial(mase.minifloat_ieee_quantizer, width=6, exponent_width=2),
        partial(mase.log_quantizer, width=3),
        partial(mase.block_fp_quantizer, width=4, block_size=[1, 2], skip_first_dim=False),
        partial(mase.block_log_quantizer, width=3, exponent_bias_width=4, block_size=[1, 2]),
        partial(mase.mxint_quantizer, block_size=2, element_bits=4),
        partial(mase.mxfp_quantizer, block_size=2, element_exp_bits=2, element_frac_bits=1),
        mase.binary_quantizer,
    ],
)
def test_gradients_pass_unclipped(quantizer):
    x = torch.tensor([[1000.0, -1000.0], [0.0, 0.3]], requires_grad=True)
    incoming = torch.tensor([[1.0, -2.0], [3.0, 0.5]])
    quantizer(x).backward(incoming)
    assert torch.equal(x.grad, incoming)


def test_families_without_backward_in_mase_carry_no_gradient():
    x = torch.randn(2, 4, requires_grad=True)
    assert not mase.block_minifloat_quantizer(x, 8, 4, 4, block_size=[1, 4]).requires_grad
    assert not mase.mxint_hardware(x, {"width": 8, "exponent_width": 4}, [1, 4]).requires_grad


def test_binarize_gradient_is_one_inside_minus_one_to_one():
    x = torch.tensor([-1.5, -1.0, 0.0, 1.0, 1.5], requires_grad=True)
    mase.binarize(x).sum().backward()
    assert x.grad.tolist() == [0, 1, 1, 1, 0]


def test_lsq_gradients_follow_the_paper():
    """Esser et al., equations 3 and 5: round(v) - v inside, the bound outside; scaled by 1/sqrt(n * qmax)."""
    x = torch.tensor([-1.0, 0.3, 0.9, 1.5, 9.0], requires_grad=True)
    s = torch.tensor(0.5, requires_grad=True)
    y = mase.lsq_integer(x, s, level=4)
    y.sum().backward()
    assert y.tolist() == [0, 0.5, 1, 1.5, 1.5]
    assert x.grad.tolist() == [0, 1, 1, 1, 0]
    by_paper = ((0) + (1 - 0.6) + (2 - 1.8) + (3 - 3) + (3)) / (5 * 3) ** 0.5
    torch.testing.assert_close(s.grad.item(), by_paper, rtol=1e-6, atol=0)


# --- errors -----------------------------------------------------------------------------------------------------------

X = torch.ones(2, 4)


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (DTypeError, lambda: mase.integer_quantizer([1.0], 8, 4)),
        (DTypeError, lambda: mase.integer_quantizer(torch.ones(3, dtype=torch.int32), 8, 4)),
        (DTypeError, lambda: mase.compose_minifloat_component(X, 4, 3)),
        (FormatError, lambda: mase.integer_quantizer(X, 0, 4)),
        (FormatError, lambda: mase.integer_quantizer(X, 8.0, 4)),
        (FormatError, lambda: mase.integer_quantizer(X, True, 4)),
        (FormatError, lambda: mase.integer_quantizer(X, 8, 1000)),
        (FormatError, lambda: mase.minifloat_ieee_quantizer(X, 4, 4)),
        (FormatError, lambda: mase.minifloat_denorm_quantizer(X, 8, 4, "many")),
        (FormatError, lambda: mase.log_quantizer(X, 1)),
        (FormatError, lambda: mase.block_fp_quantizer(X, 8, block_size=[0])),
        (FormatError, lambda: mase.block_fp_quantizer(X, 8, block_size=[])),
        (FormatError, lambda: mase.block_log_quantizer(X, 8, 0)),
        (FormatError, lambda: mase.extract_minifloat_component(X, 8, 10)),
        (FormatError, lambda: mase.extract_minifloat_component(X, 4, 3, round_mode="up")),
        (FormatError, lambda: mase.mxint_hardware(X, {"width": 8}, [4])),
        (FormatError, lambda: mase.residual_sign_quantizer(0, None, X)),
        (FormatError, lambda: mase.lsq_integer(X, torch.tensor(1.0), 1)),
        (FormatError, lambda: mase.logicnets_table(torch.ones(30), 0.0, 2, 1, 3, 1)),
        (FormatError, lambda: mase.generate_truth_table(0)),
        (FormatError, lambda: mase.linear_forward("LinearQuantum", X, X, None, {})),
        (FormatError, lambda: mase.linear_forward("LinearInteger", X, X, None, {"data_in_width": 8})),
        (ShapeError, lambda: mase.scale_integer_quantizer(torch.tensor(1.0), 8)),
        (ShapeError, lambda: mase.scale_integer_quantizer(torch.ones(2, 0), 8)),
        (ShapeError, lambda: mase.block_fp_quantizer(torch.ones(4), 8, skip_first_dim=True)),
        (ShapeError, lambda: mase.block_fp_quantizer(torch.ones(2, 2, 2), 8)),
        (ShapeError, lambda: mase.mxint_quantizer(X, 3, 8)),
        (ShapeError, lambda: mase.mxint_quantizer(X, 4, 8, block_dim=2)),
        (ShapeError, lambda: mase.softermax(X, dim=2)),
        (ShapeError, lambda: mase.mxint_hardware(X, {"width": 8, "exponent_width": 4}, [3])),
        (ShapeError, lambda: mase.ternary_quantizer(X)),
        (ShapeError, lambda: mase.binary_quantizer(X, bipolar=False)),
        (ShapeError, lambda: mase.binary_quantizer(X, stochastic=True, uniforms=torch.rand(4))),
        (ShapeError, lambda: mase.residual_sign_quantizer(2, [1.0], X)),
        (ShapeError, lambda: mase.lsq_integer(X, torch.ones(2), 4)),
        (ShapeError, lambda: mase.linear_forward("LinearBinary", X, torch.ones(3, 5), None, {})),
        (ShapeError, lambda: mase.flexround_weight(X, torch.tensor(1.0), torch.ones(3, 4), torch.ones(2, 1))),
        (ShapeError, lambda: mase.linear_lut(X, X, None, torch.ones(1), torch.zeros(3, dtype=torch.long), 2)),
        (ShapeError, lambda: mase.linear_logicnets(X, torch.ones(3, 5), torch.ones(3), 2, 1, 3, 1)),
    ],
)
def test_nonsense_is_refused_with_a_typed_error(error, call):
    with pytest.raises(error):
        call()


def test_errors_name_the_argument_and_what_is_accepted():
    with pytest.raises(FormatError, match=r"integer_quantizer: width is 99; accepted are integers from 1 to 32"):
        mase.integer_quantizer(X, 99, 4)

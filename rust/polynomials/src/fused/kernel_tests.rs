//! Laws of the kernels: functions against float64, products against products of float64.

use super::cell;
use super::lanes::*;
use super::products::*;
use super::tests::Random;
use octavo_core::simd::exp;

/// Applies a function to all of `x`, 16 at a time.
fn map<L: Lanes>(l: L, x: &[f32], f: impl Fn(L, L::F) -> L::F) -> Vec<f32> {
    let mut found = Vec::new();
    for x in x.as_chunks::<LANES>().0 {
        let mut to = Floats::default();
        l.store(f(l, l.load(&Line(*x))), &mut to);
        found.extend(to.0);
    }
    found
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// Every level gives the same bits; returns them.
macro_rules! at_all_levels {
    ($x:expr, $f:expr) => {{
        let scalar = map(Scalar, $x, $f);
        #[cfg(target_arch = "x86_64")]
        {
            if let Some(l) = Avx2::new() {
                assert_eq!(bits(&map(l, $x, $f)), bits(&scalar), "avx2");
            }
            if let Some(l) = Avx512::new() {
                assert_eq!(bits(&map(l, $x, $f)), bits(&scalar), "avx512");
            }
        }
        scalar
    }};
}

fn grid(from: f32, to: f32) -> Vec<f32> {
    let count = 1 << 16;
    (0..count).map(|i| from + (to - from) * i as f32 / (count - 1) as f32).collect()
}

#[test]
fn the_exponential_is_as_exact_as_it_says() {
    let x = grid(-87.0, 0.0);
    for (x, found) in x.iter().zip(at_all_levels!(&x, exp::exp)) {
        let want = f64::from(*x).exp();
        assert!((f64::from(found) / want - 1.0).abs() <= 2e-7, "exp({x}) = {found}");
    }
}

#[test]
fn tanh_is_as_exact_as_it_says() {
    let x = [grid(-12.0, 12.0), grid(-1e-3, 1e-3), grid(-1e30, 1e30)].concat();
    for (x, found) in x.iter().zip(at_all_levels!(&x, exp::tanh)) {
        let want = f64::from(*x).tanh();
        assert!((f64::from(found) - want).abs() <= 4e-7 * want.abs(), "tanh({x}) = {found}");
    }
}

#[test]
fn cells_are_as_exact_as_they_say() {
    let mut random = Random(5);
    let sigmoid = |x: f32| 1.0 / (1.0 + (-f64::from(x)).exp());
    for _ in 0..2000 {
        let gates: [Floats; 4] = std::array::from_fn(|_| Line(std::array::from_fn(|_| 6.0 * random.normal())));
        let before = Line(std::array::from_fn(|_| 2.0 * random.unit() - 1.0));
        let (hidden, cell) = cell::cell(Scalar, gates.map(|gate| Scalar.load(&gate)), Scalar.load(&before));
        let (mut found, mut after) = (Floats::default(), Floats::default());
        Scalar.store(hidden, &mut found);
        Scalar.store(cell, &mut after);
        for i in 0..LANES {
            let [input, forget, new, output] = gates.map(|gate| gate.0[i]);
            let want = sigmoid(forget) * f64::from(before.0[i]) + sigmoid(input) * f64::from(new).tanh();
            assert!((f64::from(after.0[i]) - want).abs() <= 1e-6);
            assert!((f64::from(found.0[i]) - sigmoid(output) * want.tanh()).abs() <= 1e-6);
        }
    }
}

/// Sums of `inputs` with a matrix, by row; of as many rows at once as there are.
fn product<A>(a: A, matrix: &Matrix<f32>, inputs: &[Vec<f32>]) -> Vec<Vec<f32>>
where
    A: Arithmetic,
    A::Weights: Weights<Code = f32, Number = f32>,
{
    let _session = a.session();
    let mut input = A::Input::new(inputs.len(), matrix.columns / LANES);
    for (row, values) in inputs.iter().enumerate() {
        for (line, values) in values.as_chunks::<LANES>().0.iter().enumerate() {
            let v = a.lanes().load(&Line(*values));
            input.row(row).put(a.lanes(), line, v, a.lanes().splat(1.0));
        }
    }
    let mut found = vec![Vec::new(); inputs.len()];
    for panel in (0..matrix.panels()).step_by(PANELS) {
        let panels = panel..matrix.panels().min(panel + PANELS);
        let mut weights = Vec::new();
        A::Weights::pack(matrix, panels.clone(), &mut weights);
        for first in (0..inputs.len()).step_by(ROWS) {
            let rows = first..inputs.len().min(first + ROWS);
            let mut sums: Block<f32> = [[Floats::default(); PANELS]; ROWS];
            let factors = Factors { weights: &weights, panels: panels.len(), input: &input, rows: rows.clone() };
            a.multiply(factors, &mut sums);
            for (row, sums) in rows.zip(sums) {
                found[row].extend(sums[..panels.len()].iter().flat_map(|line| line.0));
            }
        }
    }
    found
}

/// Products are within `error` of the sum of the products' magnitudes, and a row's do not depend on other rows.
fn check<A>(a: A, error: f64)
where
    A: Arithmetic,
    A::Weights: Weights<Code = f32, Number = f32>,
{
    let mut random = Random(11);
    for (columns, panels) in [(16, 1), (48, 2), (64, 4), (128, 7), (256, 8)] {
        let codes = (0..panels * LANES * columns).map(|_| random.normal()).collect();
        let matrix = Matrix { columns, codes };
        for rows in [1, 5, 16, 17, 32, 40] {
            let inputs: Vec<Vec<f32>> = (0..rows).map(|_| (0..columns).map(|_| random.normal()).collect()).collect();
            let found = product(a, &matrix, &inputs);
            for (input, found) in inputs.iter().zip(&found) {
                assert_eq!(bits(&product(a, &matrix, std::slice::from_ref(input))[0]), bits(found), "{rows} rows");
                for (weights, &found) in matrix.codes.chunks(columns).zip(found) {
                    let terms = weights.iter().zip(input).map(|(&w, &x)| f64::from(w) * f64::from(x));
                    let (want, size) = terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
                    assert!((f64::from(found) - want).abs() <= error * size, "{found} for {want}, {columns} inputs");
                }
            }
        }
    }
}

#[test]
fn products_are_those_of_float64_almost() {
    // Roundings of a chain of at most 256 sums; of two lower halves and what is left out; of two factors to 8 bits.
    let (chain, split, half) = (256.0 * 2f64.powi(-24), 3.0 * 2f64.powi(-17), 2f64.powi(-8));
    check(Float(Scalar), chain);
    #[cfg(target_arch = "x86_64")]
    {
        if let Some(l) = Avx2::new() {
            check(Float(l), chain);
        }
        if let Some(l) = Avx512::new() {
            check(Float(l), chain);
        }
        if let Some(a) = Limbs::new() {
            check(a, split);
        }
        if let Some(p) = Amx::new() {
            check(Half(p), half + chain);
        }
        if let Some(p) = Bf16::new() {
            check(Half(p), half + chain);
        }
    }
}

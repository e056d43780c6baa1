//! Calls of many cases in one run, with what the processor gives for each.

use octavo_core::codec::{self as core, Gradients};
use octavo_core::format::Element;
use octavo_core::{DType, Format, Layout, Nonfinite, Options, ScaleRule, Sizes};
use octavo_cuda::Call;
use octavo_cuda::codec::{self, Buffer, Encoding, Parts};

use super::data::{Encoded, Numbers, Tensor, meaning, values};
use crate::emulator::{Memory, emulate};

pub(crate) struct Wanted {
    label: String,
    address: u64,
    bytes: Vec<u8>,
    /// Values of a dtype, else plain bytes.
    dtype: Option<DType>,
}

/// Calls under way, with what they are to give.
#[derive(Default)]
pub(crate) struct Job {
    pub(crate) memory: Memory,
    calls: Vec<Call>,
    wanted: Vec<Wanted>,
    /// Sums that are equal but for their order.
    close: Vec<(String, u64, Vec<f32>)>,
    cases: usize,
    elements: usize,
}

impl Job {
    pub(crate) fn buffer(&mut self, bytes: &[u8], offset: u32) -> Buffer {
        Buffer { address: self.memory.add(bytes, offset), bytes: bytes.len() }
    }

    pub(crate) fn parts(&mut self, encoded: &Encoded, offset: u32) -> Parts {
        let [codes, scales, zeros, levels] = &encoded.0;
        // Scales keep the alignment of their type.
        Parts {
            codes: self.buffer(codes, offset),
            scales: self.buffer(scales, 4 * offset),
            zeros: self.buffer(zeros, offset),
            levels: self.buffer(levels, 4 * offset),
        }
    }

    pub(crate) fn scratch(&mut self, format: Format, layout: &Layout) -> Buffer {
        let (bytes, zero) = codec::scratch_bytes(format, layout).unwrap();
        self.buffer(&vec![if zero { 0 } else { 0xa5 }; bytes], 0)
    }

    pub(crate) fn expect(&mut self, label: &str, at: Buffer, bytes: &[u8], dtype: Option<DType>) {
        let label = label.to_owned();
        self.wanted.push(Wanted { label, address: at.address, bytes: bytes.to_vec(), dtype });
    }

    pub(crate) fn expect_parts(&mut self, label: &str, parts: &Parts, encoded: &Encoded) {
        let names = ["codes", "scales", "zeros", "levels"];
        let buffers = [parts.codes, parts.scales, parts.zeros, parts.levels];
        for ((name, at), bytes) in names.into_iter().zip(buffers).zip(&encoded.0) {
            self.expect(&format!("{label}, {name}"), at, bytes, None);
        }
    }

    /// Everything that is done with one format, dtype and shape. `offset` moves all addresses by as many elements.
    pub(crate) fn add(
        &mut self,
        format: Format,
        dtype: DType,
        (rows, k, offset): (usize, usize, u32),
        rule: ScaleRule,
        seed: u64,
    ) {
        let layout = Layout::new(&[rows, k], -1, format).unwrap();
        let (sizes, count) = (Sizes::new(format, &layout).unwrap(), rows * k);
        let numbers = &mut Numbers(seed);
        let shift = offset * dtype.bytes() as u32;
        let name = format!("{format} {} [{rows}, {k}] +{offset} {rule:?}", dtype.name());
        let bytes = values(numbers, count, dtype, seed % 3 == 1);
        let x = Tensor::of(&bytes, dtype);
        let grads = values(numbers, count, dtype, true);
        let grad = Tensor::of(&grads, dtype);
        let nonfinite = if format.has_nan() && seed.is_multiple_of(2) { Nonfinite::Nan } else { Nonfinite::Saturate };
        let options = Options { rule, nonfinite, given: None };
        let how = Encoding { rule, nonfinite, given: false, first: 0 };
        let saturate = Options { nonfinite: Nonfinite::Saturate, ..options };
        self.cases += 1;
        self.elements += count;

        let mut encoded = Encoded::new(&sizes, 0xa5);
        core::encode(x.values(), layout, format, &options, encoded.write()).unwrap();
        let at = self.buffer(&bytes, shift);
        let parts = self.parts(&Encoded::new(&sizes, 0xa5), offset);
        let scratch = self.scratch(format, &layout);
        let calls = codec::encode(format, dtype, &layout, at, &parts, scratch, &how).unwrap();
        if count == 0 {
            assert!(calls.is_empty());
            return;
        }
        self.calls.extend(calls);
        self.expect_parts(&format!("{name}: encode {nonfinite:?}"), &parts, &encoded);

        // Random codes as well, which no encoder writes.
        let mut any = encoded.clone();
        if seed % 2 == 1 {
            any.0[0].iter_mut().for_each(|byte| *byte = numbers.next() as u8);
        }
        let mut out = Tensor::zeros(count, dtype);
        core::decode(any.read(), layout, format, out.values_mut()).unwrap();
        let (parts, to) = (self.parts(&any, offset), self.buffer(&vec![0xa5; count * dtype.bytes()], shift));
        self.calls.extend(codec::decode(format, dtype, &layout, &parts, to).unwrap());
        self.expect(&format!("{name}: decode"), to, &out.to_bytes(), Some(dtype));

        core::quantize(x.values(), layout, format, &saturate, out.values_mut()).unwrap();
        let (to, scratch) = (self.buffer(&bytes, shift), self.scratch(format, &layout));
        // In place, every other time.
        let from = if seed.is_multiple_of(2) { to } else { at };
        let none = Parts::default();
        self.calls.extend(codec::quantize(format, dtype, &layout, from, to, &none, scratch, &how).unwrap());
        self.expect(&format!("{name}: quantize"), to, &out.to_bytes(), Some(dtype));

        let gradients = Gradients { x: out.values_mut(), scales: None };
        core::quantize_backward(grad.values(), x.values(), layout, format, &saturate, gradients).unwrap();
        let (from, to) = (self.buffer(&grads, shift), self.buffer(&vec![0xa5; count * dtype.bytes()], shift));
        let scratch = self.scratch(format, &layout);
        self.calls.extend(codec::gradient(format, dtype, &layout, from, at, to, &none, scratch, &how).unwrap());
        self.expect(&format!("{name}: gradient"), to, &out.to_bytes(), Some(dtype));

        if format.scale_type().is_none() {
            return;
        }
        // Scales of other values.
        let mut given = Encoded::new(&sizes, 0);
        let others = Tensor::of(&values(numbers, count, dtype, true), dtype);
        core::encode(others.values(), layout, format, &saturate, given.write()).unwrap();
        let with = Options { given: Some(given.read()), ..options };
        let how = Encoding { given: true, ..how };
        core::encode(x.values(), layout, format, &with, encoded.write()).unwrap();
        let mut start = given.clone();
        start.0[0].fill(0xa5);
        let (parts, scratch) = (self.parts(&start, offset), self.scratch(format, &layout));
        self.calls.extend(codec::encode(format, dtype, &layout, at, &parts, scratch, &how).unwrap());
        self.expect_parts(&format!("{name}: encode {nonfinite:?} with scales"), &parts, &encoded);

        let with = Options { given: Some(given.read()), ..saturate };
        core::quantize(x.values(), layout, format, &with, out.values_mut()).unwrap();
        let parts = Parts { codes: Buffer::default(), ..self.parts(&given, offset) };
        let (to, scratch) = (self.buffer(&vec![0xa5; count * dtype.bytes()], shift), self.scratch(format, &layout));
        self.calls.extend(codec::quantize(format, dtype, &layout, at, to, &parts, scratch, &how).unwrap());
        self.expect(&format!("{name}: quantize with scales"), to, &out.to_bytes(), Some(dtype));

        let learns =
            matches!(format.element(), Element::Int { signed: true, .. } | Element::Fixed { fraction: None, .. });
        let mut slopes = vec![0.0f32; sizes.groups];
        let gradients = Gradients { x: out.values_mut(), scales: learns.then_some(&mut slopes[..]) };
        core::quantize_backward(grad.values(), x.values(), layout, format, &with, gradients).unwrap();
        if learns {
            let (to, scratch) = (self.buffer(&vec![0xa5; 4 * slopes.len()], 0), self.scratch(format, &layout));
            let calls = codec::scale_gradient(format, dtype, &layout, from, at, to, &parts, scratch, &how);
            self.calls.extend(calls.unwrap());
            self.close.push((format!("{name}: gradient of scales"), to.address, slopes));
        }
        let (to, scratch) = (self.buffer(&vec![0xa5; count * dtype.bytes()], shift), self.scratch(format, &layout));
        self.calls.extend(codec::gradient(format, dtype, &layout, from, at, to, &parts, scratch, &how).unwrap());
        self.expect(&format!("{name}: gradient with scales"), to, &out.to_bytes(), Some(dtype));
    }

    /// Decoding random blocks of a format that nothing is encoded in.
    pub(crate) fn add_carried(
        &mut self,
        format: Format,
        dtype: DType,
        (rows, k, offset): (usize, usize, u32),
        seed: u64,
    ) {
        let layout = Layout::new(&[rows, k], -1, format).unwrap();
        let (sizes, count) = (Sizes::new(format, &layout).unwrap(), rows * k);
        let numbers = &mut Numbers(seed);
        let name = format!("{format} {} [{rows}, {k}] +{offset}", dtype.name());
        let mut encoded = Encoded::new(&sizes, 0);
        for part in &mut encoded.0 {
            // No float16 is infinite or NaN.
            part.iter_mut().for_each(|byte| *byte = numbers.next() as u8 & 0xbb);
        }
        let mut out = Tensor::zeros(count, dtype);
        core::decode(encoded.read(), layout, format, out.values_mut()).unwrap();
        let shift = offset * dtype.bytes() as u32;
        let (parts, to) = (self.parts(&encoded, offset), self.buffer(&vec![0xa5; count * dtype.bytes()], shift));
        self.calls.extend(codec::decode(format, dtype, &layout, &parts, to).unwrap());
        self.expect(&format!("{name}: decode"), to, &out.to_bytes(), Some(dtype));
        self.cases += 1;
        self.elements += count;
    }

    pub(crate) fn run(mut self) {
        emulate(&self.calls, &mut self.memory);
        let mut wrong = Vec::new();
        for Wanted { label, address, bytes, dtype } in &self.wanted {
            let got = self.memory.bytes(*address);
            let differs = match dtype {
                Some(dtype) => {
                    let (got, wanted) = (meaning(got, *dtype), meaning(bytes, *dtype));
                    let first = got.iter().zip(&wanted).position(|(a, b)| a != b);
                    first.map(|i| format!("{label}, element {i}: {:#x}, wanted {:#x}", got[i], wanted[i]))
                }
                None => {
                    let first = got.iter().zip(bytes).position(|(a, b)| a != b);
                    first.map(|i| format!("{label}, byte {i}: {:#x}, wanted {:#x}", got[i], bytes[i]))
                }
            };
            wrong.extend(differs);
        }
        for (label, address, values) in &self.close {
            let got = self.memory.bytes(*address).as_chunks().0.iter().map(|b| f32::from_le_bytes(*b));
            let far = |a: f32, b: f32| (a - b).abs() > 1e-6 * b.abs() && a.to_bits() != b.to_bits();
            let differs = got.zip(values).find(|(a, b)| far(*a, **b));
            wrong.extend(differs.map(|(a, b)| format!("{label}: {a}, wanted {b}")));
        }
        let shown: Vec<&str> = wrong.iter().take(60).map(String::as_str).collect();
        assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), self.wanted.len(), shown.join("\n"));
        eprintln!("{} cases of {} elements, {} results equal", self.cases, self.elements, self.wanted.len());
    }
}

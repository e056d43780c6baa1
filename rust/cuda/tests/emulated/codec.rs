//! Codecs on the device against octavo-core: the same bits for every format, dtype, shape and address.

use octavo_core::codec::{self as core, Gradients};
use octavo_core::format::{Element, catalogue};
use octavo_core::{DType, Format, Layout, Nonfinite, Options, Packed, PackedMut, ScaleRule, Sizes, Values, ValuesMut};
use octavo_cuda::codec::{self, Buffer, Encoding, Parts};
use octavo_cuda::{Call, Error};

use crate::emulator::{Memory, available, emulate};

/// Formats beyond the catalogue: odd widths, blocks and biases.
const MORE: [&str; 26] = [
    "fixed17.3",
    "fixed24.30",
    "fixed32.16",
    "ufixed32.-3",
    "fixed8.511",
    "fixed8.-300",
    "fixed20",
    "ufixed5:channel",
    "ufixed8:mse",
    "fixed8:mse,channel",
    "int3:channel",
    "int2:g3",
    "int8:g512",
    "uint7:g5",
    "uint3:g32",
    "uint16",
    "e2m1b-3",
    "e8m10",
    "denorm9e3",
    "denorm4e2",
    "binary3",
    "binary4:channel",
    "bfp6/7",
    "bm13e2/9",
    "mxint5/7",
    "nvfp4/5",
];
/// One or two of every kind, for the run that takes seconds.
const FEW: [&str; 11] = [
    "mxint8",
    "mxfp6e3m2",
    "mxfp8e5m2",
    "nvfp4",
    "bfp6/7",
    "int8:channel",
    "uint3:g32",
    "nf4",
    "e4m3",
    "fixed8:mse",
    "binary2:channel",
];
const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];
const RULES: [ScaleRule; 3] = [ScaleRule::Floor, ScaleRule::Ceil, ScaleRule::Mse];

struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }

    /// The bits of a float32: values near 1, of any size, small integers and halves, subnormals, and what is not finite.
    fn bits(&mut self, finite: bool) -> u32 {
        let any = self.next();
        match self.next() % 16 {
            0..7 => ((any as i32) as f32 / (1u32 << 30) as f32).to_bits(),
            7..10 => ((any % 512) as f32 / 4.0 - 64.0).to_bits(),
            10 => any & 0x807f_ffff,
            11 => (any & 0x80ff_ffff) | 0x7f00_0000 & if finite { 0x7e00_0000 } else { u32::MAX },
            12 => [0, 0x8000_0000, 0x3f80_0000, 0x7f7f_ffff, 0xff7f_ffff, 1][any as usize % 6],
            13 if !finite => [0x7f80_0000, 0xff80_0000, 0x7fc0_0000][any as usize % 3],
            _ if finite => any & 0xbfff_ffff,
            _ => any,
        }
    }
}

/// Values as bytes of a dtype.
fn values(numbers: &mut Numbers, count: usize, dtype: DType, finite: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    // Whole stretches of one size, so that blocks are not all ruled by one huge element.
    let mut size = 0;
    for i in 0..count {
        if i % 29 == 0 {
            size = if numbers.next() % 4 == 0 { numbers.next() % 200 } else { 0 };
        }
        let mut bits = numbers.bits(finite);
        let exponent = bits >> 23 & 255;
        if size > 0 && (1..255).contains(&exponent) {
            bits = (bits & 0x807f_ffff) | (size + exponent % 8) << 23;
        }
        let v = f32::from_bits(bits);
        match dtype {
            DType::F32 => bytes.extend(v.to_le_bytes()),
            DType::F16 if finite => bytes.extend(half::f16::from_f32(v.clamp(-60_000.0, 60_000.0)).to_le_bytes()),
            // Any bits at all where they are wanted, so that they are not all subnormal or infinite.
            DType::F16 if numbers.next() % 2 == 0 => bytes.extend(((bits >> 16) as u16).to_le_bytes()),
            DType::F16 => bytes.extend(half::f16::from_f32(v).to_le_bytes()),
            DType::BF16 => bytes.extend(((bits >> 16) as u16).to_le_bytes()),
        }
    }
    bytes
}

/// Aligned words, and the view of a dtype on them.
struct Tensor {
    words: Vec<u32>,
    bytes: usize,
    dtype: DType,
}

impl Tensor {
    fn of(bytes: &[u8], dtype: DType) -> Self {
        let mut padded = bytes.to_vec();
        padded.resize(bytes.len().next_multiple_of(4), 0);
        let words = padded.as_chunks().0.iter().map(|w| u32::from_le_bytes(*w)).collect();
        Self { words, bytes: bytes.len(), dtype }
    }
    fn zeros(count: usize, dtype: DType) -> Self {
        Self::of(&vec![0; count * dtype.bytes()], dtype)
    }
    fn halves(&self) -> &[u16] {
        // SAFETY: words are two halves each, and the length counts those of the tensor.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), self.bytes / 2) }
    }
    fn values(&self) -> Values<'_> {
        match self.dtype {
            // SAFETY: float32 has the size and alignment of its bits.
            DType::F32 => {
                Values::F32(unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), self.words.len()) })
            }
            DType::F16 => Values::F16(self.halves()),
            DType::BF16 => Values::BF16(self.halves()),
        }
    }
    fn values_mut(&mut self) -> ValuesMut<'_> {
        let (at, halves) = (self.words.as_mut_ptr(), self.bytes / 2);
        // SAFETY: as above.
        unsafe {
            match self.dtype {
                DType::F32 => ValuesMut::F32(std::slice::from_raw_parts_mut(at.cast(), self.words.len())),
                DType::F16 => ValuesMut::F16(std::slice::from_raw_parts_mut(at.cast(), halves)),
                DType::BF16 => ValuesMut::BF16(std::slice::from_raw_parts_mut(at.cast(), halves)),
            }
        }
    }
    fn to_bytes(&self) -> Vec<u8> {
        self.words.iter().flat_map(|w| w.to_le_bytes()).take(self.bytes).collect()
    }
}

/// Bits of values; every NaN and every zero as one pattern.
fn meaning(bytes: &[u8], dtype: DType) -> Vec<u32> {
    let one = |bits: u32, infinity: u32, sign: u32| match bits & !sign {
        0 => 0,
        m if m > infinity => u32::MAX,
        _ => bits,
    };
    match dtype {
        DType::F32 => bytes.as_chunks().0.iter().map(|b| one(u32::from_le_bytes(*b), 0x7f80_0000, 1 << 31)).collect(),
        _ => {
            let infinity = if dtype == DType::F16 { 0x7c00 } else { 0x7f80 };
            bytes.as_chunks().0.iter().map(|b| one(u16::from_le_bytes(*b).into(), infinity, 1 << 15)).collect()
        }
    }
}

/// Codes, scales, zeros and levels on the host.
#[derive(Clone)]
struct Encoded([Vec<u8>; 4]);

impl Encoded {
    fn new(sizes: &Sizes, fill: u8) -> Self {
        Self([sizes.codes, sizes.scales, sizes.zeros, sizes.levels].map(|bytes| vec![fill; bytes]))
    }
    fn read(&self) -> Packed<'_> {
        let [codes, scales, zeros, levels] = &self.0;
        Packed { codes, scales, zeros, levels }
    }
    fn write(&mut self) -> PackedMut<'_> {
        let [codes, scales, zeros, levels] = &mut self.0;
        PackedMut { codes, scales, zeros, levels }
    }
}

struct Wanted {
    label: String,
    address: u64,
    bytes: Vec<u8>,
    /// Values of a dtype, else plain bytes.
    dtype: Option<DType>,
}

/// Calls under way, with what they are to give.
#[derive(Default)]
struct Job {
    memory: Memory,
    calls: Vec<Call>,
    wanted: Vec<Wanted>,
    /// Sums that are equal but for their order.
    close: Vec<(String, u64, Vec<f32>)>,
    cases: usize,
    elements: usize,
}

impl Job {
    fn buffer(&mut self, bytes: &[u8], offset: u32) -> Buffer {
        Buffer { address: self.memory.add(bytes, offset), bytes: bytes.len() }
    }

    fn parts(&mut self, encoded: &Encoded, offset: u32) -> Parts {
        let [codes, scales, zeros, levels] = &encoded.0;
        // Scales keep the alignment of their type.
        Parts {
            codes: self.buffer(codes, offset),
            scales: self.buffer(scales, 4 * offset),
            zeros: self.buffer(zeros, offset),
            levels: self.buffer(levels, 4 * offset),
        }
    }

    fn scratch(&mut self, format: Format, layout: &Layout) -> Buffer {
        let (bytes, zero) = codec::scratch_bytes(format, layout).unwrap();
        self.buffer(&vec![if zero { 0 } else { 0xa5 }; bytes], 0)
    }

    fn expect(&mut self, label: &str, at: Buffer, bytes: &[u8], dtype: Option<DType>) {
        let label = label.to_owned();
        self.wanted.push(Wanted { label, address: at.address, bytes: bytes.to_vec(), dtype });
    }

    fn expect_parts(&mut self, label: &str, parts: &Parts, encoded: &Encoded) {
        let names = ["codes", "scales", "zeros", "levels"];
        let buffers = [parts.codes, parts.scales, parts.zeros, parts.levels];
        for ((name, at), bytes) in names.into_iter().zip(buffers).zip(&encoded.0) {
            self.expect(&format!("{label}, {name}"), at, bytes, None);
        }
    }

    /// Everything that is done with one format, dtype and shape. `offset` moves all addresses by as many elements.
    fn add(&mut self, format: Format, dtype: DType, rows: usize, k: usize, offset: u32, rule: ScaleRule, seed: u64) {
        let layout = Layout::new(&[rows, k], -1, format).unwrap();
        let (sizes, count) = (Sizes::new(format, &layout).unwrap(), rows * k);
        let numbers = &mut Numbers(seed);
        let shift = offset * dtype.bytes() as u32;
        let name = format!("{format} {} [{rows}, {k}] +{offset} {rule:?}", dtype.name());
        let bytes = values(numbers, count, dtype, seed % 3 == 1);
        let x = Tensor::of(&bytes, dtype);
        let grads = values(numbers, count, dtype, true);
        let grad = Tensor::of(&grads, dtype);
        let nonfinite = if format.has_nan() && seed % 2 == 0 { Nonfinite::Nan } else { Nonfinite::Saturate };
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
        let from = if seed % 2 == 0 { to } else { at };
        let none = Parts::default();
        self.calls.extend(codec::quantise(format, dtype, &layout, from, to, &none, scratch, &how).unwrap());
        self.expect(&format!("{name}: quantise"), to, &out.to_bytes(), Some(dtype));

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
        self.calls.extend(codec::quantise(format, dtype, &layout, at, to, &parts, scratch, &how).unwrap());
        self.expect(&format!("{name}: quantise with scales"), to, &out.to_bytes(), Some(dtype));

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

    fn run(mut self) {
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

/// Shapes that take every way through the kernels: whole blocks in joined rows, rows of odd lengths, one element, none,
/// odd addresses, and several tiles and chunks with a tail.
fn all_shapes(job: &mut Job, format: Format, dtype: DType, seed: u64) {
    let rule = |i: u64| if format.is_block() { RULES[((seed + i) % 3) as usize] } else { ScaleRule::Floor };
    let shapes = [(2, 512, 0), (3, 77, 0), (1, 1, 0), (0, 5, 0), (4, 96, 1), (2, 1032, 0), (1, 20_160, 0)];
    for (i, (rows, k, offset)) in (0u64..).zip(shapes) {
        job.add(format, dtype, rows, k, offset, rule(i), seed * 8 + i);
    }
}

fn formats() -> impl Iterator<Item = Format> {
    catalogue().iter().copied().chain(MORE).map(|text| Format::parse(text).unwrap())
}

#[test]
fn a_few_formats_give_the_processors_bits() {
    if !available() {
        return;
    }
    let mut job = Job::default();
    for (i, text) in FEW.into_iter().enumerate() {
        all_shapes(&mut job, Format::parse(text).unwrap(), DTYPES[(i + 2) % 3], i as u64);
    }
    job.run();
}

#[test]
#[ignore = "compiles some 1,500 programs"]
fn every_format_gives_the_processors_bits() {
    if !available() {
        return;
    }
    let only = std::env::var("OCTAVO_FORMATS").unwrap_or_default();
    for (i, format) in
        formats().enumerate().filter(|(_, format)| only.is_empty() || only.split(' ').any(|f| f == format.to_string()))
    {
        let mut job = Job::default();
        for (j, dtype) in DTYPES.into_iter().enumerate() {
            for round in 0..2 {
                all_shapes(&mut job, format, dtype, (i * 3 + j) as u64 + 1000 * round);
            }
        }
        job.run();
    }
}

#[test]
fn the_first_value_that_is_not_finite_is_named() {
    if !available() {
        return;
    }
    for (text, dtype, rows, k) in [("mxint8", DType::BF16, 4, 640), ("int8:channel", DType::F16, 5, 77)] {
        let format = Format::parse(text).unwrap();
        let layout = Layout::new(&[rows, k], -1, format).unwrap();
        let sizes = Sizes::new(format, &layout).unwrap();
        for places in [vec![], vec![rows * k - 1], vec![300, 299, 160, 161, 380]] {
            let mut job = Job::default();
            let mut bytes = vec![0; 2 * rows * k];
            for &i in &places {
                bytes[2 * i..2 * i + 2]
                    .copy_from_slice(&(if i % 2 == 0 { 0xffffu16 } else { 0x7c00 | 0x0380 }).to_le_bytes());
            }
            let (at, first) = (job.buffer(&bytes, 0), job.buffer(&u64::MAX.to_le_bytes(), 0));
            let parts = job.parts(&Encoded::new(&sizes, 0), 0);
            let scratch = job.scratch(format, &layout);
            let how = Encoding { first: first.address, ..Encoding::default() };
            let calls = codec::encode(format, dtype, &layout, at, &parts, scratch, &how).unwrap();
            emulate(&calls, &mut job.memory);
            let wanted = places.iter().min().map_or(u64::MAX, |&i| i as u64);
            assert_eq!(job.memory.bytes(first.address), wanted.to_le_bytes(), "{text} {places:?}");
        }
    }
}

#[test]
fn buffers_that_do_not_fit_are_refused() {
    let format = Format::parse("uint4:g32").unwrap();
    let layout = Layout::new(&[3, 64], -1, format).unwrap();
    let buffer = |address, bytes| Buffer { address, bytes };
    let good = Parts {
        codes: buffer(1 << 20, 96),
        scales: buffer(2 << 20, 12),
        zeros: buffer(3 << 20, 3),
        levels: Buffer::default(),
    };
    let out = buffer(4 << 20, 768);
    let decode = |layout: &Layout, parts: &Parts, out| codec::decode(format, DType::F32, layout, parts, out);
    assert_eq!(decode(&layout, &good, out).unwrap().len(), 1);
    for (parts, out) in [
        (Parts { codes: buffer(1 << 20, 95), ..good }, out),
        (Parts { codes: buffer(0, 96), ..good }, out),
        (Parts { scales: buffer((2 << 20) + 1, 12), ..good }, out),
        (Parts { zeros: buffer(3 << 20, 4), ..good }, out),
        (Parts { levels: buffer(3 << 20, 4), ..good }, out),
        (good, buffer(4 << 20, 767)),
        (good, buffer((4 << 20) + 2, 768)),
    ] {
        assert!(matches!(decode(&layout, &parts, out), Err(Error::Core(octavo_core::Error::Shape(_)))));
    }
    let inner = Layout { outer: 1, k: 3, inner: 64 };
    assert!(decode(&inner, &good, out).is_err());
    let (scratch, _) = codec::scratch_bytes(format, &layout).unwrap();
    let encode =
        |how: &Encoding, bytes| codec::encode(format, DType::F32, &layout, out, &good, buffer(5 << 20, bytes), how);
    assert!(encode(&Encoding::default(), scratch).is_ok());
    assert!(encode(&Encoding::default(), scratch + 1).is_err());
    for how in [
        Encoding { rule: ScaleRule::Mse, ..Encoding::default() },
        Encoding { nonfinite: Nonfinite::Nan, ..Encoding::default() },
    ] {
        assert!(matches!(encode(&how, scratch), Err(Error::Core(octavo_core::Error::Format(_)))));
    }
}

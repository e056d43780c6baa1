//! Reads the stored scales of groups as float32.

use std::arch::x86_64::*;

use super::plan::Scale;
use crate::codec::rows::Rows;
use crate::format::KQuant;
use crate::simd::Line;
use crate::simd::amx::LINE;

/// Added to exponents, so that the scales of blocks of zeros are not subnormal: arithmetic on subnormals is slow.
const RAISED: i32 = 32;
/// Largest exponent code accepted: beyond it accumulators could overflow although the result would not.
const MAX_CODE: u8 = 127 + 40;
/// Largest scale of another type, and largest factor of a row, for the same reason.
const MAX_SCALE: f32 = (1u64 << 40) as f32;
/// Smallest one but 0: below it decoded weights could be subnormal, which rounds them.
const MIN_SCALE: f32 = f32::from_bits((127 - 100) << 23);
/// Scales below this are checked again: those of blocks of zeros become 0.
pub(super) const LOW: f32 = f32::from_bits((127 - 40) << 23);

/// Smallest float16 but 0.
pub(super) const MIN_HALF: f32 = f32::from_bits((127 - 24) << 23);
/// Prefetch distance in bytes of stored scales.
const AHEAD: usize = 2048;
/// Bits of the largest float16.
const MAX_HALF: i16 = 0x7bff;

/// Reads float16 scales, as many as `to` holds; false where one is not finite. All finite ones are in range, and none but 0
/// is below [`MIN_HALF`].
///
/// # Safety
/// The processor must have AVX-512 F, BW and VL; there must be as many scales at `from`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn read_halves(from: *const i16, to: &mut [f32], least: &mut __m512) -> bool {
    let mut most = _mm512_setzero_si512();
    for (i, to) in to.chunks_mut(32).enumerate() {
        let lanes = u32::MAX >> (32 - to.len());
        // SAFETY: masks keep inside the scales and inside `to`.
        unsafe {
            let at = from.add(32 * i);
            _mm_prefetch::<_MM_HINT_T0>(at.wrapping_byte_add(AHEAD).cast());
            let bits = _mm512_maskz_loadu_epi16(lanes, at);
            most = _mm512_max_epu16(most, _mm512_and_si512(bits, _mm512_set1_epi16(i16::MAX)));
            let (low, high) = (_mm512_castsi512_si256(bits), _mm512_extracti64x4_epi64::<1>(bits));
            _mm512_mask_storeu_ps(to.as_mut_ptr(), lanes as u16, _mm512_cvtph_ps(low));
            if to.len() > 16 {
                _mm512_mask_storeu_ps(to.as_mut_ptr().add(16), (lanes >> 16) as u16, _mm512_cvtph_ps(high));
            }
        }
    }
    *least = _mm512_min_ps(*least, _mm512_set1_ps(MIN_HALF));
    _mm512_cmpgt_epu16_mask(most, _mm512_set1_epi16(MAX_HALF)) == 0
}

/// Reads float16 scales, as many as `to` holds; false where one is not finite.
///
/// # Safety
/// The processor must have AVX2 and F16C.
#[target_feature(enable = "avx2,f16c")]
fn halves_avx2(from: &[u8], to: &mut [f32]) -> bool {
    let (halves, rest) = from.as_chunks::<16>();
    let (eights, last) = to.as_chunks_mut::<8>();
    let mut most = _mm_setzero_si128();
    for (from, to) in halves.iter().zip(eights) {
        // SAFETY: eight numbers are read, and written.
        unsafe {
            let bits = _mm_loadu_si128(from.as_ptr().cast());
            most = _mm_max_epu16(most, _mm_and_si128(bits, _mm_set1_epi16(i16::MAX)));
            _mm256_storeu_ps(to.as_mut_ptr(), _mm256_cvtph_ps(bits));
        }
    }
    for (from, to) in rest.as_chunks::<2>().0.iter().zip(last) {
        let bits = i32::from(u16::from_le_bytes(*from));
        most = _mm_max_epu16(most, _mm_cvtsi32_si128(bits & i32::from(i16::MAX)));
        *to = _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)));
    }
    // Magnitudes are below 2^15, as numbers with a sign too.
    _mm_movemask_epi8(_mm_cmpgt_epi16(most, _mm_set1_epi16(MAX_HALF))) == 0
}

/// True for a scale, or a factor of a row, that neither overflows nor vanishes in products of moderate inputs.
pub(in crate::linear) fn is_moderate(scale: f32) -> bool {
    scale == 0.0 || (MIN_SCALE..=MAX_SCALE).contains(&scale.abs())
}

/// Writes the zero points of a row, each of them `each` times, as often as there is room for the last.
pub(in crate::linear) fn zeros(rows: &Rows<'_>, row: usize, each: usize, to: &mut [f32], stored: &mut Vec<u16>) {
    rows.zeros(row, stored);
    if each == 1 {
        to.iter_mut().zip(stored).for_each(|(to, zero)| *to = f32::from(*zero));
        return;
    }
    for (to, zero) in to.chunks_mut(each).zip(stored) {
        to.fill(f32::from(*zero));
    }
}

/// As [`zeros`], for the codes of a plan, or of numbers alike: `unpack` is their width, at most 8, and, as [`super::Plan`] has
/// them, the bytes of each run of eight codes and the first bit of each code inside its run.
///
/// # Safety
/// The processor must have AVX-512 F, BW, VL and VBMI; the matrix must have the row.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
pub(in crate::linear) unsafe fn zeros_vbmi(
    rows: &Rows<'_>,
    unpack: (u32, &Line<u8, LINE>, &Line<u8, LINE>),
    row: usize,
    each: usize,
    to: &mut [f32],
) {
    let (stored, groups) = (rows.stored_zeros(row), rows.scales().1);
    let (width, places, first_bits) = unpack;
    let bytes = LINE / 8 * width as usize;
    let mut sixteen = [0.0f32; 16];
    for (start, packed) in (0..groups).step_by(LINE).zip(stored.chunks(bytes)) {
        // SAFETY: the mask keeps inside the stored bytes; lines and arrays of sixteen numbers are whole vectors.
        unsafe {
            let places = _mm512_load_si512(places.0.as_ptr().cast());
            let first_bits = _mm512_load_si512(first_bits.0.as_ptr().cast());
            let packed = _mm512_maskz_loadu_epi8(u64::MAX >> (LINE - packed.len()), packed.as_ptr().cast());
            let codes = _mm512_multishift_epi64_epi8(first_bits, _mm512_permutexvar_epi8(places, packed));
            let codes = _mm512_and_si512(codes, _mm512_set1_epi8((u8::MAX >> (8 - width)).cast_signed()));
            let quarters = [
                _mm512_extracti32x4_epi32::<0>(codes),
                _mm512_extracti32x4_epi32::<1>(codes),
                _mm512_extracti32x4_epi32::<2>(codes),
                _mm512_extracti32x4_epi32::<3>(codes),
            ];
            for (group, quarter) in (start..groups).step_by(16).zip(quarters) {
                let numbers = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(quarter));
                let to = to.get_mut(group * each..).unwrap_or_default();
                let count = 16.min(groups - group);
                if each == 1 {
                    let count = count.min(to.len()) as u32;
                    _mm512_mask_storeu_ps(to.as_mut_ptr(), ((1u32 << count) - 1) as u16, numbers);
                    continue;
                }
                _mm512_storeu_ps(sixteen.as_mut_ptr(), numbers);
                to.chunks_mut(each).zip(&sixteen[..count]).for_each(|(to, zero)| to.fill(*zero));
            }
        }
    }
}

/// What a block of a K-quant stores of its groups: integers, and the numbers that they are multiplied with.
struct Nested {
    scales: [i8; 16],
    offsets: [i8; 16],
    scale: f32,
    offset: f32,
}

impl Nested {
    /// Takes the bytes of a block apart, eight groups at a time; [`crate::codec::kquants::group`] is the same of one group.
    fn of(kind: KQuant, bytes: &[u8]) -> Self {
        let half = |at: usize| half::f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32();
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let (low_halves, six, two) = (0x0f0f_0f0f_0f0f_0f0fu64, 0x3f3f_3f3fu32, 0x0303_0303u32);
        let bytes_of = |first: u64, second: u64| {
            let mut all = [0i8; 16];
            for (to, from) in all.iter_mut().zip(first.to_le_bytes().into_iter().chain(second.to_le_bytes())) {
                *to = from.cast_signed();
            }
            all
        };
        match kind {
            KQuant::Q2 => {
                let (first, second) = (long(word(0), word(4)), long(word(8), word(12)));
                Self {
                    scales: bytes_of(first & low_halves, second & low_halves),
                    offsets: bytes_of(first >> 4 & low_halves, second >> 4 & low_halves),
                    scale: half(16),
                    offset: half(18),
                }
            }
            KQuant::Q3 => {
                let (low, high) = (long(word(0), word(4)), word(8));
                let top = |pair: u32| (high >> (2 * pair) & two) << 4;
                let first = low & low_halves | long(top(0), top(1));
                let second = low >> 4 & low_halves | long(top(2), top(3));
                Self {
                    scales: bytes_of(first, second).map(|number| number - 32),
                    offsets: [0; 16],
                    scale: half(12),
                    offset: 0.0,
                }
            }
            KQuant::Q4 | KQuant::Q5 => {
                let (a, b, c) = (word(4), word(8), word(12));
                let four = 0x0f0f_0f0fu32;
                Self {
                    scales: bytes_of(long(a & six, c & four | (a >> 6 & two) << 4), 0),
                    offsets: bytes_of(long(b & six, c >> 4 & four | (b >> 6 & two) << 4), 0),
                    scale: half(0),
                    offset: half(2),
                }
            }
            KQuant::Q6 => Self {
                scales: bytes_of(long(word(0), word(4)), long(word(8), word(12))),
                offsets: [0; 16],
                scale: half(16),
                offset: 0.0,
            },
        }
    }
}

/// The stored scales of a matrix.
pub(in crate::linear) struct Scales<'a> {
    scale: Scale,
    bytes: &'a [u8],
    /// Scales in a row.
    pub(in crate::linear) groups: usize,
    /// E4M3 codes times the tensor's scale.
    table: Vec<f32>,
}

impl<'a> Scales<'a> {
    pub(in crate::linear) fn new(scale: Scale, rows: &Rows<'a>) -> Self {
        let (bytes, groups) = rows.scales();
        let table = match scale {
            Scale::Code => (0..=255).map(|code| rows.block_step(code) as f32).collect(),
            _ => Vec::new(),
        };
        Self { scale, bytes, groups, table }
    }

    /// The stored scales, of all rows.
    pub(in crate::linear) const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Bytes of a row's float16 scales, with the offsets behind them.
    pub(super) fn row_bytes(&self, offsets: bool) -> usize {
        self.groups * if offsets { 4 } else { 2 }
    }

    /// Power of two by which all that [`Self::read`] gives is too large.
    pub(in crate::linear) const fn raised(&self) -> i32 {
        match self.scale {
            Scale::Exponent { shift } => RAISED + shift,
            _ => 0,
        }
    }

    /// Reads the scales of groups from `first` on of a row, as many as `to` holds, and keeps their smallest magnitudes but
    /// 0, lane by lane, or smaller numbers; false where one is not in range.
    ///
    /// # Safety
    /// The processor must have AVX-512 F, BW and VL; the matrix must have the row, and the row the groups.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(in crate::linear) unsafe fn read(&self, row: usize, first: usize, to: &mut [f32], least: &mut __m512) -> bool {
        let at = row * self.groups + first;
        if let Scale::Nested(_) = self.scale {
            return false; // groups have offsets too: see `read_nested`
        }
        if self.scale == Scale::Half {
            // SAFETY: as the caller promises.
            return unsafe { read_halves(self.bytes.as_ptr().add(2 * at).cast(), to, least) };
        }
        let mut fits = true;
        for (i, to) in to.chunks_mut(16).enumerate() {
            let lanes = u16::MAX >> (16 - to.len());
            // SAFETY: masks keep inside the scales of the row, and inside `to`.
            unsafe {
                let scales = match self.scale {
                    Scale::Row | Scale::Half | Scale::Nested(_) => _mm512_set1_ps(1.0),
                    Scale::Exponent { .. } => {
                        let stored = self.bytes.as_ptr().add(at + 16 * i);
                        _mm_prefetch::<_MM_HINT_T0>(stored.wrapping_add(AHEAD).cast());
                        let codes = _mm_maskz_loadu_epi8(lanes, stored.cast());
                        fits &= _mm_cmpgt_epu8_mask(codes, _mm_set1_epi8(MAX_CODE.cast_signed())) == 0;
                        let raised = _mm512_add_epi32(_mm512_cvtepu8_epi32(codes), _mm512_set1_epi32(RAISED));
                        _mm512_castsi512_ps(_mm512_slli_epi32::<23>(raised))
                    }
                    Scale::Code => {
                        let codes = _mm_maskz_loadu_epi8(lanes, self.bytes.as_ptr().add(at + 16 * i).cast());
                        let index = _mm512_cvtepu8_epi32(codes);
                        let scales = _mm512_i32gather_ps::<4>(index, self.table.as_ptr());
                        let size = _mm512_abs_ps(scales);
                        let beyond = _mm512_cmp_ps_mask::<_CMP_NLE_UQ>(size, _mm512_set1_ps(MAX_SCALE));
                        let below = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(size, _mm512_set1_ps(MIN_SCALE))
                            & _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(size, _mm512_setzero_ps());
                        fits &= (beyond | below) & lanes == 0;
                        scales
                    }
                };
                _mm512_mask_storeu_ps(to.as_mut_ptr(), lanes, scales);
                if let Scale::Exponent { .. } = self.scale {
                    *least = _mm512_mask_min_ps(*least, lanes, *least, scales); // none is 0
                } else {
                    let size = _mm512_abs_ps(scales);
                    let numbers = _mm512_mask_cmp_ps_mask::<_CMP_NEQ_UQ>(lanes, size, _mm512_setzero_ps());
                    *least = _mm512_mask_min_ps(*least, numbers, *least, size);
                }
            }
        }
        fits
    }

    /// As [`Self::read`] for all groups of a row, each scale `each` times.
    ///
    /// # Safety
    /// As there; there must be room for them, if not for the last as often.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(in crate::linear) unsafe fn read_each(
        &self,
        row: usize,
        each: usize,
        to: &mut [f32],
        least: &mut __m512,
    ) -> bool {
        if each == 1 {
            // SAFETY: as the caller promises.
            return unsafe { self.read(row, 0, &mut to[..self.groups], least) };
        }
        let mut scales = [0.0f32; 64];
        let mut fits = true;
        for start in (0..self.groups).step_by(64) {
            let scales = &mut scales[..64.min(self.groups - start)];
            // SAFETY: as above.
            fits &= unsafe { self.read(row, start, scales, least) };
            for (to, scale) in to[start * each..].chunks_mut(each).zip(scales) {
                to.fill(*scale);
            }
        }
        fits
    }

    /// Reads the steps and offsets of the groups of a row of a K-quant; as [`Self::read_each`].
    ///
    /// # Safety
    /// As there.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(in crate::linear) unsafe fn read_nested(
        &self,
        kind: KQuant,
        row: usize,
        scales: &mut [f32],
        offsets: &mut [f32],
        least: &mut __m512,
    ) -> bool {
        let (mut fits, count) = (true, kind.groups());
        let bytes = &self.bytes[row * self.groups * kind.scale_bytes()..][..self.groups * kind.scale_bytes()];
        let blocks = bytes.chunks_exact(kind.scale_bytes());
        for ((block, scales), offsets) in blocks.zip(scales.chunks_mut(count)).zip(offsets.chunks_mut(count)) {
            let nested = Nested::of(kind, block);
            let lanes = u16::MAX >> (16 - scales.len().min(offsets.len()));
            fits &= nested.scale.is_finite() && nested.offset.is_finite();
            // SAFETY: masks keep inside `scales` and `offsets`; the arrays are sixteen bytes.
            unsafe {
                let numbers = _mm512_cvtepi8_epi32(_mm_loadu_si128(nested.scales.as_ptr().cast()));
                let steps = _mm512_mul_ps(_mm512_cvtepi32_ps(numbers), _mm512_set1_ps(nested.scale));
                _mm512_mask_storeu_ps(scales.as_mut_ptr(), lanes, steps);
                let numbers = _mm512_cvtepi8_epi32(_mm_loadu_si128(nested.offsets.as_ptr().cast()));
                let moved = _mm512_mul_ps(_mm512_cvtepi32_ps(numbers), _mm512_set1_ps(-nested.offset));
                _mm512_mask_storeu_ps(offsets.as_mut_ptr(), lanes, moved);
            }
        }
        // A float16 times an integer.
        *least = _mm512_min_ps(*least, _mm512_set1_ps(MIN_HALF));
        fits
    }

    /// Reads float16 scales and the offset behind each of a row, each `each` times; as [`Self::read_each`].
    ///
    /// # Safety
    /// As there.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(in crate::linear) unsafe fn read_pairs(
        &self,
        row: usize,
        each: usize,
        scales: &mut [f32],
        offsets: &mut [f32],
        least: &mut __m512,
    ) -> bool {
        let (mut most, mut both) = (_mm512_setzero_si512(), [[0.0f32; 16]; 2]);
        for start in (0..self.groups).step_by(16) {
            let count = 16.min(self.groups - start);
            let lanes = u16::MAX >> (16 - count);
            // SAFETY: the mask keeps inside the pairs of the row; the arrays are whole vectors.
            let [read, moved] = unsafe {
                let from = self.bytes.as_ptr().add(4 * (row * self.groups + start));
                _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(AHEAD).cast());
                let pairs = _mm512_maskz_loadu_epi32(lanes, from.cast());
                most = _mm512_max_epu16(most, _mm512_and_si512(pairs, _mm512_set1_epi16(i16::MAX)));
                let halves = [pairs, _mm512_srli_epi32::<16>(pairs)].map(|pairs| _mm512_cvtepi32_epi16(pairs));
                halves.map(|halves| _mm512_cvtph_ps(halves))
            };
            if each == 1 {
                let (scales, offsets) = (&mut scales[start..][..count], &mut offsets[start..][..count]);
                // SAFETY: the mask keeps inside both.
                unsafe {
                    _mm512_mask_storeu_ps(scales.as_mut_ptr(), lanes, read);
                    _mm512_mask_storeu_ps(offsets.as_mut_ptr(), lanes, moved);
                }
                continue;
            }
            // SAFETY: as above.
            unsafe {
                _mm512_storeu_ps(both[0].as_mut_ptr(), read);
                _mm512_storeu_ps(both[1].as_mut_ptr(), moved);
            }
            for (to, from) in [&mut *scales, &mut *offsets].into_iter().zip(&both) {
                let places = to[start * each..].chunks_mut(each);
                places.zip(&from[..count]).for_each(|(to, value)| to.fill(*value));
            }
        }
        *least = _mm512_min_ps(*least, _mm512_set1_ps(MIN_HALF));
        _mm512_cmpgt_epu16_mask(most, _mm512_set1_epi16(MAX_HALF)) == 0
    }

    /// As [`Self::read_each`] with the instructions of AVX2, without the smallest of them.
    ///
    /// # Safety
    /// The processor must have AVX2 and F16C; the matrix must have the row.
    #[target_feature(enable = "avx2,f16c")]
    pub(in crate::linear) unsafe fn read_each_avx2(&self, row: usize, each: usize, to: &mut [f32]) -> bool {
        let first = row * self.groups;
        let scales = &mut to[..self.groups];
        let fits = match self.scale {
            Scale::Row => {
                scales.fill(1.0);
                true
            }
            Scale::Nested(_) => false,
            Scale::Half => halves_avx2(&self.bytes[2 * first..][..2 * self.groups], scales),
            Scale::Exponent { .. } => {
                let mut most = 0;
                for (to, &code) in scales.iter_mut().zip(&self.bytes[first..]) {
                    most = most.max(code);
                    *to = f32::from_bits((u32::from(code) + RAISED as u32) << 23);
                }
                most <= MAX_CODE
            }
            Scale::Code => {
                for (to, &code) in scales.iter_mut().zip(&self.bytes[first..]) {
                    *to = self.table[usize::from(code)];
                }
                scales.iter().fold(true, |all, &scale| all & is_moderate(scale))
            }
        };
        // From the last one on: no scale is written over before it is read.
        for at in if each == 1 { 0..0 } else { 0..self.groups }.rev() {
            let (scale, end) = (to[at], to.len().min((at + 1) * each));
            to[at * each..end].fill(scale);
        }
        fits
    }

    /// True where scales are powers of two, the least of which is so low that blocks of zeros must be told from others.
    pub(super) fn low(&self, least: f32) -> bool {
        matches!(self.scale, Scale::Exponent { .. }) && least < LOW
    }

    /// Makes low scales of groups 0 whose packed codes are all 0, `bytes` each of them, at most a line; returns the smallest
    /// of the others.
    ///
    /// # Safety
    /// The processor must have AVX-512 F, BW and VL.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(super) unsafe fn clear(scales: &mut [f32], codes: &[u8], bytes: usize) -> f32 {
        let mut least = _mm512_set1_ps(f32::INFINITY);
        for (scales, codes) in scales.chunks_mut(16).zip(codes.chunks(16 * bytes)) {
            let lanes = u16::MAX >> (16 - scales.len());
            // SAFETY: masks keep inside both slices.
            unsafe {
                let all = _mm512_maskz_loadu_ps(lanes, scales.as_ptr());
                let mut low = _mm512_mask_cmp_ps_mask::<_CMP_LT_OQ>(lanes, all, _mm512_set1_ps(LOW));
                let mut zeros = 0;
                while low != 0 {
                    let start = low.trailing_zeros() as usize * bytes;
                    let len = bytes.min(codes.len().saturating_sub(start));
                    let inside = if len == 0 { 0 } else { u64::MAX >> (64 - len) };
                    let codes = _mm512_maskz_loadu_epi8(inside, codes.as_ptr().wrapping_add(start).cast());
                    zeros |=
                        (low & low.wrapping_neg()) & u16::from(_mm512_test_epi8_mask(codes, codes) == 0).wrapping_neg();
                    low &= low - 1;
                }
                _mm512_mask_storeu_ps(scales.as_mut_ptr(), zeros, _mm512_setzero_ps());
                least = _mm512_mask_min_ps(least, lanes & !zeros, least, all);
            }
        }
        _mm512_reduce_min_ps(least)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Plan;
    use super::*;
    use crate::format::Format;
    use crate::linear::encoded_sample::{Sample, noise};
    use crate::simd::Level;

    #[test]
    fn groups_of_k_quants_have_the_steps_and_offsets_of_the_codec() {
        if Level::detect() < Level::Avx512 {
            return;
        }
        for kind in KQuant::ALL {
            let (format, k) = (Format::parse(&format!("q{}_k", kind.width())).unwrap(), 256 * 2 + 40);
            let bytes: Vec<u8> = (0..3 * 3 * kind.scale_bytes() as u32)
                .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8 & 0xbb)
                .collect();
            let codes = vec![0; 3 * format.row_bytes(k).unwrap()];
            let packed = crate::codec::Packed { codes: &codes, scales: &bytes, ..Default::default() };
            let rows = Rows::new(packed, 3, k, format, Level::Avx512).unwrap();
            let all = Scales::new(Scale::Nested(kind), &rows);
            for row in 0..3 {
                let mut both = [vec![0.5; 3 * kind.groups()], vec![0.5; 3 * kind.groups()]];
                let [scales, offsets] = &mut both;
                // SAFETY: the instructions were detected, and the matrix has the row.
                assert!(unsafe {
                    let mut least = _mm512_set1_ps(f32::INFINITY);
                    all.read_nested(kind, row, scales, offsets, &mut least)
                });
                for group in 0..3 * kind.groups() {
                    let block = &bytes[(row * 3 + group / kind.groups()) * kind.scale_bytes()..][..kind.scale_bytes()];
                    let wanted = crate::codec::kquants::group(kind, block, group % kind.groups());
                    assert_eq!((scales[group], offsets[group]), wanted, "{format}, row {row}, group {group}");
                }
            }
        }
    }

    #[test]
    fn zero_points_are_those_of_the_format_for_all_widths() {
        if Level::detect() < Level::Avx512 || !is_x86_feature_detected!("avx512vbmi") {
            return;
        }
        for width in 2..=8u32 {
            for (block, k) in [(16, 16 * 131), (32, 32 * 64 + 5), (64, 64 * 3), (64, 64 * 200 - 1)] {
                let format = Format::parse(&format!("uint{width}:g{block}")).unwrap();
                let weights: Vec<f32> = (0..3 * k).map(|i| noise(i) + (i / block % 7) as f32 - 3.0).collect();
                let sample = Sample::new(&weights, k, format);
                let rows = sample.rows(Level::Avx512);
                let (groups, plan) = (k.div_ceil(block), Plan::new(format).unwrap());
                let unpack = (width, &plan.gather, &plan.shifts);
                for (row, each) in [(0, 1), (2, 1), (1, 2), (2, 5)] {
                    for places in [groups * each, groups * each + 9, groups * each - 1] {
                        let (mut found, mut wanted) = (vec![0.5; places], vec![0.5; places]);
                        zeros(&rows, row, each, &mut wanted, &mut Vec::new());
                        // SAFETY: the instructions were detected.
                        unsafe { zeros_vbmi(&rows, unpack, row, each, &mut found) };
                        assert_eq!(found, wanted, "{format}: row {row} of {k}, {each} times, {places} places");
                    }
                }
            }
        }
    }
}

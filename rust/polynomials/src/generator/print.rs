//! Lines as SymPy 1.14 prints products and sums, without spaces.

use super::{Factors, Kind, Linear};

/// `sin(n)` or `n`, held inline.
struct Symbol {
    bytes: [u8; 6],
    length: usize,
}

impl Symbol {
    fn new(factors: &Factors) -> Self {
        let mut bytes = [factors.letter; 6];
        let Some(function) = factors.function else {
            return Self { bytes, length: 1 };
        };
        bytes[..3].copy_from_slice(function.name().as_bytes());
        bytes[3] = b'(';
        bytes[5] = b')';
        Self { bytes, length: 6 }
    }
    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Decimal digits of a number below 10,000, the largest here being 1,024.
fn number(out: &mut Vec<u8>, value: u16) {
    for (least, unit) in [(1000, 1000), (100, 100), (10, 10), (0, 1)] {
        if value >= least {
            out.push(b'0' + (value / unit % 10) as u8);
        }
    }
}

/// `3*` before a symbol: 1 is dropped, -1 is a sign.
fn coefficient(out: &mut Vec<u8>, value: i16) {
    if value < 0 {
        out.push(b'-');
    }
    if value.unsigned_abs() != 1 {
        number(out, value.unsigned_abs());
        out.push(b'*');
    }
}

/// A sign, always printed, and the digits.
fn signed(out: &mut Vec<u8>, value: i16) {
    out.push(if value < 0 { b'-' } else { b'+' });
    number(out, value.unsigned_abs());
}

/// `(2*x+3)`, or `(3-2*x)` where the number is positive and the coefficient negative.
fn sum(out: &mut Vec<u8>, Linear { a, b }: Linear, symbol: &Symbol) {
    out.push(b'(');
    let number_first = b > 0 && a < 0;
    if number_first {
        number(out, b.unsigned_abs().into());
    }
    coefficient(out, a.into());
    out.extend_from_slice(symbol.as_bytes());
    if !number_first {
        signed(out, b.into());
    }
    out.push(b')');
}

impl Factors {
    /// Appends the left side, the product: 4 to [`super::LONGEST_LEFT`] ASCII bytes.
    pub fn left(&self, out: &mut Vec<u8>) {
        let symbol = Symbol::new(self);
        let (first, second) = (self.first, self.second);
        match self.kind() {
            Kind::Monomial => {
                coefficient(out, i16::from(first.a) * i16::from(second.a));
                out.extend_from_slice(symbol.as_bytes());
                out.extend_from_slice(b"**2");
            }
            // SymPy sorts a letter before a sum and a function behind it.
            Kind::MonomialTimesSum if self.function.is_some() => {
                coefficient(out, first.a.into());
                sum(out, second, &symbol);
                out.push(b'*');
                out.extend_from_slice(symbol.as_bytes());
            }
            Kind::MonomialTimesSum => {
                coefficient(out, first.a.into());
                out.extend_from_slice(symbol.as_bytes());
                out.push(b'*');
                sum(out, second, &symbol);
            }
            Kind::Square => {
                sum(out, first, &symbol);
                out.extend_from_slice(b"**2");
            }
            Kind::Product => {
                sum(out, first, &symbol);
                out.push(b'*');
                sum(out, second, &symbol);
            }
        }
    }

    /// Appends the right side, the expansion: 4 to [`super::LONGEST_RIGHT`] ASCII bytes.
    pub fn right(&self, out: &mut Vec<u8>) {
        let symbol = Symbol::new(self);
        let [a, b, c, d] = [self.first.a, self.first.b, self.second.a, self.second.b].map(i16::from);
        let (square, linear, constant) = (a * c, a * d + b * c, b * d);
        // Of two terms, a positive number comes before a negative term.
        let number_first = linear == 0 && constant > 0 && square < 0;
        if number_first {
            number(out, constant.unsigned_abs());
        }
        coefficient(out, square);
        out.extend_from_slice(symbol.as_bytes());
        out.extend_from_slice(b"**2");
        if linear != 0 {
            if linear > 0 {
                out.push(b'+');
            }
            coefficient(out, linear);
            out.extend_from_slice(symbol.as_bytes());
        }
        if constant != 0 && !number_first {
            signed(out, constant);
        }
    }

    /// Appends the line `left=right`.
    pub fn line(&self, out: &mut Vec<u8>) {
        self.left(out);
        out.push(b'=');
        self.right(out);
    }
}

impl std::fmt::Display for Factors {
    /// The left side.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = Vec::with_capacity(super::LONGEST_LEFT);
        self.left(&mut text);
        f.write_str(&String::from_utf8_lossy(&text))
    }
}

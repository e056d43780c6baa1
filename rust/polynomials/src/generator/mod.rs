//! The polynomial exercise: `factored=expanded` lines, generated, expanded and tokenized without a file.
//!
//! A line is a product of two linear factors in one symbol and its expansion, both as SymPy prints them, without spaces:
//! `(7-3*z)*(2*z+5)=-6*z**2-z+35`. The law:
//!
//! 1. The letter is uniform over the 16 characters of `sincostan` + `hijkxyz`.
//! 2. With probability 0.03 the symbol X is `sin`, `cos` or `tan` of the letter, else the letter itself.
//! 3. Two independent factors aX+b: a is 1 with probability 0.2, else uniform over -9..=8 without 0; b is 0 with
//!    probability 0.2, else uniform over -32..=31 without 0.
//!
//! [`Factors`] is one line by its factors; [`Generator`] draws line number i as a pure function of a seed and i.

mod excluded;
mod law;
mod lines;
mod parse;
mod print;
#[cfg(test)]
mod tests;

pub use lines::Generator;

use crate::FactorFault;

/// Characters of the longest left side, `(-9*cos(n)-32)*(-9*cos(n)-31)`.
pub const LONGEST_LEFT: usize = 29;
/// Characters of the longest right side, such as `-18*cos(n)**2+224*cos(n)+1024`; one in three million has so many.
pub const LONGEST_RIGHT: usize = 29;
/// The 28 characters of both sides, in ascending order; the `=` between them is of neither.
pub const CHARACTERS: &str = "()*+-0123456789achijknostxyz";
/// What letters are drawn from: n, i and s occur twice.
pub const LETTERS: &[u8; 16] = b"sincostanhijkxyz";

/// The function around the letter of a symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Function {
    /// `sin(x)`
    Sin,
    /// `cos(x)`
    Cos,
    /// `tan(x)`
    Tan,
}

impl Function {
    /// All of them, in the order in which they are drawn.
    pub const ALL: [Self; 3] = [Self::Sin, Self::Cos, Self::Tan];

    /// The name in a line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sin => "sin",
            Self::Cos => "cos",
            Self::Tan => "tan",
        }
    }
}

/// One factor aX+b: `a` in -9..=8 without 0, `b` in -32..=31.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Linear {
    a: i8,
    b: i8,
}

impl Linear {
    /// The factor aX+b.
    ///
    /// # Errors
    /// [`FactorFault`] for numbers that the law does not have.
    pub fn new(a: i16, b: i16) -> std::result::Result<Self, FactorFault> {
        if a == 0 || !(-9..=8).contains(&a) {
            return Err(FactorFault::Coefficient { value: a });
        }
        if !(-32..=31).contains(&b) {
            return Err(FactorFault::Constant { value: b });
        }
        Ok(Self { a: a as i8, b: b as i8 })
    }
    /// The coefficient of the symbol.
    pub const fn a(self) -> i8 {
        self.a
    }
    /// The constant.
    pub const fn b(self) -> i8 {
        self.b
    }
    /// SymPy's order of sums in a product: first those with b > 0 > a, by b then a; then the others, by a then b.
    const fn order(self) -> (bool, i8, i8) {
        if self.b > 0 && self.a < 0 { (false, self.b, self.a) } else { (true, self.a, self.b) }
    }
    /// 11 bits, another number for each factor.
    const fn index(self) -> u64 {
        ((self.a + 9) as u64) << 6 | (self.b + 32) as u64
    }
}

/// One line, by its factors. Two lines with equal text are equal values.
///
/// Canonical order: a factor without a constant first; else SymPy's order of printing. Where both lack a constant only the
/// product of their coefficients shows, and of the pairs that give it the one with the greatest smaller coefficient stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Factors {
    function: Option<Function>,
    letter: u8,
    first: Linear,
    second: Linear,
}

/// The form of a left side. Together with the question whether the symbol is a function it divides all lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `c*X**2`: no factor has a constant.
    Monomial,
    /// `c*X*(aX+b)`: one factor has a constant.
    MonomialTimesSum,
    /// `(aX+b)**2`: equal factors with a constant.
    Square,
    /// `(aX+b)*(cX+d)`
    Product,
}

impl Factors {
    /// The line of the product of two factors, given in any order.
    ///
    /// # Errors
    /// [`FactorFault::Letter`] for a letter that the law does not have.
    pub fn new(
        function: Option<Function>,
        letter: u8,
        one: Linear,
        other: Linear,
    ) -> std::result::Result<Self, FactorFault> {
        if !LETTERS.contains(&letter) {
            return Err(FactorFault::Letter { letter: char::from(letter) });
        }
        Ok(Self::canonical(function, letter, one, other))
    }

    /// The value for factors that are known to be of the law.
    fn canonical(function: Option<Function>, letter: u8, one: Linear, other: Linear) -> Self {
        let (first, second) = match (one.b, other.b) {
            (0, 0) => square_pair(i16::from(one.a) * i16::from(other.a)).unwrap_or((one, other)),
            (0, _) => (one, other),
            (_, 0) => (other, one),
            _ if other.order() < one.order() => (other, one),
            _ => (one, other),
        };
        Self { function, letter, first, second }
    }

    /// The function around the letter, if there is one.
    pub const fn function(&self) -> Option<Function> {
        self.function
    }
    /// The letter, an ASCII byte.
    pub const fn letter(&self) -> u8 {
        self.letter
    }
    /// The first factor in canonical order.
    pub const fn first(&self) -> Linear {
        self.first
    }
    /// The second factor in canonical order.
    pub const fn second(&self) -> Linear {
        self.second
    }

    /// A number of 29 bits that is another one for each distinct line.
    pub const fn key(&self) -> u64 {
        let function = match self.function {
            None => 0,
            Some(function) => 1 + function as u64,
        };
        (function << 5 | (self.letter - b'a') as u64) << 22 | self.first.index() << 11 | self.second.index()
    }

    /// The form of the left side.
    pub fn kind(&self) -> Kind {
        match (self.first.b, self.second.b) {
            (0, 0) => Kind::Monomial,
            (0, _) => Kind::MonomialTimesSum,
            _ if self.first == self.second => Kind::Square,
            _ => Kind::Product,
        }
    }
}

/// The canonical pair of factors without constants for `product*X**2`; `None` where the law has no such pair.
fn square_pair(product: i16) -> Option<(Linear, Linear)> {
    (-9..=8).rev().filter(|&a| a != 0 && product % a == 0).find_map(|a| {
        let other = product / a;
        let pair = (Linear { a: a as i8, b: 0 }, Linear { a: other as i8, b: 0 });
        (a <= other && other <= 8 && other != 0).then_some(pair)
    })
}

//! From a left side back to its factors, strictly: what SymPy would not print is refused.

use crate::{Error, LeftFault, Result};

use super::{CHARACTERS, Factors, Function, LETTERS, LONGEST_LEFT, Linear, square_pair};

/// A symbol: the function and the letter.
type Symbol = (Option<Function>, u8);
/// What was read, or why it is refused; the place is where the parser stands.
type Answer<T> = std::result::Result<T, LeftFault>;

impl Factors {
    /// The factors of a left side, such as `(7-3*z)*(2*z+5)`. The inverse of [`Factors::left`].
    ///
    /// # Errors
    /// [`Error::Left`] with the column (counted from 1) and the reason for everything that the law does not print, and
    /// for another order or spelling than SymPy's with the text that it would print.
    pub fn parse(left: &str) -> Result<Self> {
        let refuse = |column: usize, fault: LeftFault| {
            let shown: String = left.chars().take(LONGEST_LEFT + 1).collect();
            let cut = shown.len() < left.len();
            Error::Left { left: shown, cut, column, fault }
        };
        if let Some((at, character)) = left.chars().enumerate().find(|&(_, character)| !CHARACTERS.contains(character))
        {
            return Err(refuse(at + 1, LeftFault::Character { character }));
        }
        if left.len() > LONGEST_LEFT {
            return Err(refuse(LONGEST_LEFT + 1, LeftFault::Length { characters: left.len() }));
        }
        let mut parser = Parser { text: left.as_bytes(), at: 0, symbol: None };
        let factors = parser.product().map_err(|fault| refuse(parser.at + 1, fault))?;
        let printed = factors.to_string();
        if printed != left {
            let same = printed.bytes().zip(left.bytes()).take_while(|(one, other)| one == other).count();
            return Err(refuse(same + 1, LeftFault::Spelling { printed }));
        }
        Ok(factors)
    }
}

const fn expected(what: &'static str) -> LeftFault {
    LeftFault::Expected { what }
}

struct Parser<'a> {
    text: &'a [u8],
    at: usize,
    /// The symbol met first; a line has but one.
    symbol: Option<Symbol>,
}

/// What a product is made of, as far as it was read.
#[derive(Default)]
struct Parts {
    coefficient: Option<i16>,
    /// The power of the symbol outside of sums.
    power: u32,
    sums: Vec<Linear>,
}

impl Parser<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }
    fn take(&mut self, expected: &str) -> bool {
        let found = self.text[self.at..].starts_with(expected.as_bytes());
        self.at += if found { expected.len() } else { 0 };
        found
    }

    /// The whole left side: an optional sign, then numbers, symbols and sums in brackets with `*` between them.
    fn product(&mut self) -> Answer<Factors> {
        let mut parts = Parts::default();
        let sign = if self.take("-") { -1 } else { 1 };
        loop {
            self.item(&mut parts)?;
            if self.peek().is_none() {
                break;
            }
            if !self.take("*") {
                return Err(expected("'*' or the end"));
            }
        }
        let coefficient = sign * parts.coefficient.unwrap_or(1);
        let Some((function, letter)) = self.symbol else {
            return Err(LeftFault::NoSymbol);
        };
        let (one, other) = match (parts.power, parts.sums.as_slice()) {
            (2, []) => square_pair(coefficient).ok_or(LeftFault::Square { coefficient })?,
            (1, &[sum]) => (Linear::new(coefficient, 0)?, sum),
            (0, &[one, other]) if parts.coefficient.is_none() && sign == 1 => (one, other),
            _ => return Err(expected("a product of two factors such as 2*x+3")),
        };
        Ok(Factors::new(function, letter, one, other)?)
    }

    /// A number, a symbol or a sum, the latter two with or without `**2`.
    fn item(&mut self, parts: &mut Parts) -> Answer<()> {
        match self.peek() {
            Some(b'0'..=b'9') if parts.coefficient.is_none() && parts.power == 0 && parts.sums.is_empty() => {
                parts.coefficient = Some(self.number()?);
            }
            Some(b'(') => {
                let sum = self.sum()?;
                let times = if self.take("**2") { 2 } else { 1 };
                parts.sums.extend(std::iter::repeat_n(sum, times));
            }
            Some(b'a'..=b'z') => {
                self.symbol()?;
                parts.power += if self.take("**2") { 2 } else { 1 };
            }
            _ => return Err(expected("a number, a symbol or '('")),
        }
        Ok(())
    }

    /// `(2*x+3)` or `(3-2*x)`.
    fn sum(&mut self) -> Answer<Linear> {
        self.at += 1;
        let (mut a, mut b) = (None, None);
        for term in 0..2 {
            let sign = match self.peek() {
                Some(b'-') => -1,
                Some(b'+') if term == 1 => 1,
                _ if term == 0 => 1,
                _ => return Err(expected("'+' or '-'")),
            };
            self.at += usize::from(sign == -1 || term == 1);
            let begin = self.at;
            let number = if matches!(self.peek(), Some(b'0'..=b'9')) { Some(self.number()?) } else { None };
            let (slot, value) = if number.is_none() || self.take("*") {
                self.symbol()?;
                (&mut a, sign * number.unwrap_or(1))
            } else {
                (&mut b, sign * number.unwrap_or(0))
            };
            if slot.replace(value).is_some() {
                self.at = begin;
                return Err(expected("one term with the symbol and one number"));
            }
        }
        if !self.take(")") {
            return Err(expected("')'"));
        }
        Ok(Linear::new(a.unwrap_or(0), b.unwrap_or(0))?)
    }

    /// A number of 1 to 3 digits; more than the law has, so that the message can name what is too large.
    fn number(&mut self) -> Answer<i16> {
        let digits = self.text[self.at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits > 3 {
            return Err(LeftFault::Digits { digits });
        }
        let value = self.text[self.at..self.at + digits].iter().fold(0, |all, byte| 10 * all + i16::from(byte - b'0'));
        self.at += digits;
        Ok(value)
    }

    /// The symbol, the same one as before.
    fn symbol(&mut self) -> Answer<()> {
        let begin = self.at;
        let function = Function::ALL.into_iter().find(|function| self.take(function.name()));
        if function.is_some() && !self.take("(") {
            return Err(expected("'('"));
        }
        let letter = self.peek().filter(|letter| LETTERS.contains(letter)).ok_or(expected("a letter"))?;
        self.at += 1;
        if function.is_some() && !self.take(")") {
            return Err(expected("')'"));
        }
        if *self.symbol.get_or_insert((function, letter)) != (function, letter) {
            self.at = begin;
            return Err(LeftFault::AnotherSymbol);
        }
        Ok(())
    }
}

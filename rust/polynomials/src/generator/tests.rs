//! Laws of the lines that hold for all of them. What SymPy prints is the oracle of `tests/lab/polynomials/test_data.py`.

use std::collections::HashSet;

use octavo_core::text::characters::{CharTokenizer, END, PAD};

use super::*;
use crate::{Error, LeftFault, tokenizer};

/// All 1,088 factors.
fn linears() -> impl Iterator<Item = Linear> + Clone {
    (-9..=8).filter(|&a| a != 0).flat_map(|a| (-32..=31).map(move |b| Linear::new(a, b).unwrap()))
}

/// All pairs of factors, each in both orders.
fn pairs() -> impl Iterator<Item = (Linear, Linear)> {
    linears().flat_map(|one| linears().map(move |other| (one, other)))
}

#[test]
fn key_and_text_tell_the_same_lines_apart() {
    let (mut keys, mut lefts, mut lines) = (HashSet::new(), HashSet::new(), HashSet::new());
    for (one, other) in pairs() {
        let factors = Factors::new(None, b'x', one, other).unwrap();
        assert_eq!(factors, Factors::new(None, b'x', other, one).unwrap());
        if lines.insert(factors) {
            assert!(keys.insert(factors.key()), "{factors}");
            assert!(lefts.insert(factors.to_string()), "{factors}");
        }
    }
    for (at, &letter) in b"acsz".iter().enumerate() {
        for function in [None, Some(Function::Sin), Some(Function::Cos), Some(Function::Tan)] {
            let one = Linear::new(at as i16 + 1, 3).unwrap();
            let key = Factors::new(function, letter, one, one).unwrap().key();
            assert!(key < 1 << 29 && keys.insert(key), "{function:?} {letter}");
        }
    }
}

#[test]
fn sides_have_the_stated_lengths() {
    for (function, least, left_most, right_most) in [(None, 4, 19, 19), (Some(Function::Cos), 9, 29, 29)] {
        let lengths = pairs().map(|(one, other)| {
            let factors = Factors::new(function, b'n', one, other).unwrap();
            let (mut left, mut right) = (Vec::new(), Vec::new());
            factors.left(&mut left);
            factors.right(&mut right);
            (left.len(), right.len())
        });
        let all: Vec<_> = lengths.collect();
        assert_eq!(all.iter().map(|&(left, _)| left).max(), Some(left_most));
        assert_eq!(all.iter().map(|&(_, right)| right).max(), Some(right_most));
        assert!(all.iter().all(|&(left, right)| left >= least - 1 && right >= least - 1), "{function:?}");
    }
}

#[test]
fn parse_inverts_left() {
    for function in [None, Some(Function::Tan)] {
        for (one, other) in pairs().step_by(7) {
            let factors = Factors::new(function, b't', one, other).unwrap();
            assert_eq!(Factors::parse(&factors.to_string()).unwrap(), factors);
        }
    }
    // All monomials, where factors are not unique.
    for (one, other) in pairs().filter(|(one, other)| one.b() == 0 && other.b() == 0) {
        let factors = Factors::new(None, b'x', one, other).unwrap();
        assert_eq!(Factors::parse(&factors.to_string()).unwrap(), factors);
    }
}

#[test]
fn the_expansion_has_the_value_of_the_product() {
    for (one, other) in pairs() {
        let factors = Factors::new(None, b'x', one, other).unwrap();
        let [a, b, c, d] = [factors.first(), factors.second()]
            .map(|linear| [i64::from(linear.a()), i64::from(linear.b())])
            .concat()
            .try_into()
            .unwrap();
        let mut right = Vec::new();
        factors.right(&mut right);
        let text = String::from_utf8(right).unwrap();
        for x in [3i64, -7] {
            assert_eq!(value(&text, x), (a * x + b) * (c * x + d), "{factors} = {text}");
        }
    }
}

/// The value of a sum of terms `c*x**2`, `c*x` and numbers.
fn value(text: &str, x: i64) -> i64 {
    let terms = text.replace('-', "+-");
    terms.split('+').filter(|term| !term.is_empty()).fold(0, |sum, term| {
        let (coefficient, power) = match term.split_once('x') {
            None => (term, 0),
            Some((coefficient, power)) => (coefficient, if power == "**2" { 2 } else { 1 }),
        };
        let coefficient = match coefficient.trim_end_matches('*') {
            "" => 1,
            "-" => -1,
            number => number.parse().unwrap(),
        };
        sum + coefficient * x.pow(power)
    })
}

#[test]
fn what_the_law_does_not_print_is_refused_with_column_and_reason() {
    for (left, reason) in [
        ("", "column 1: expected a number"),
        ("x", "column 2: expected a product of two factors"),
        ("7", "no symbol"),
        ("x**2x", "column 5: expected '*' or the end"),
        ("(x+1)*(y+2)", "column 8: another symbol"),
        ("(x+1)*(sin(x)+2)", "column 8: another symbol"),
        ("(x+2)*(x+1)", "column 4: not as SymPy prints it, which is \"(x+1)*(x+2)\""),
        ("(x+1)*(x+1)", "not as SymPy prints it, which is \"(x+1)**2\""),
        ("1*x**2", "not as SymPy prints it, which is \"x**2\""),
        ("(1+x)*(x+2)", "which is \"(x+1)*(x+2)\""),
        ("(x+1)*cos(x)", "column 7: another symbol"),
        ("(x+1)*x*", "column 9: expected a number"),
        ("77*x**2", "77 is no product of two coefficients"),
        ("0*x**2", "0 is no product"),
        ("(9*x+1)*(x+2)", "column 8: coefficient 9; accepted are -9 to 8"),
        ("(x+32)**2", "constant 32; accepted are -32 to 31"),
        ("12*x*(x+2)", "coefficient 12"),
        ("(0*x+1)**2", "coefficient 0"),
        ("(x+1)**2**2", "column 10: expected a number"),
        ("2*(x+1)*(x+2)", "expected a product of two factors"),
        ("-(x+1)*(x+2)", "expected a product of two factors"),
        ("x*x", "which is \"x**2\""),
        ("(x+1", "column 5: expected ')'"),
        ("(x", "column 3: expected '+' or '-'"),
        ("(3+4)*x", "column 4: expected one term with the symbol"),
        ("sin(x)**3", "column 8: expected a number"),
        ("sin*(x+1)", "column 4: expected '('"),
        ("99999*x**2", "column 1: a number of 5 digits"),
        ("(x+1)*(x+2)=x", "column 12: unknown character '='"),
        ("2*b**2", "column 3: unknown character 'b'"),
        ("\u{fc}", "column 1: unknown character '\u{fc}'"),
        ("(x+1)*(x+2)*(x+3)*(x+4)*(x+5)*(x+6)", "column 30: 35 characters"),
    ] {
        let message = Factors::parse(left).unwrap_err().to_string();
        assert!(message.contains(reason), "{left}: {message}");
        assert!(message.len() < 250, "{message}");
    }
}

#[test]
fn a_line_is_a_function_of_seed_and_number() {
    let text = |lines: &str| lines.lines().map(str::to_owned).collect::<Vec<_>>();
    let stream = Generator::new(7, &[]);
    let whole = text(&String::from_utf8(stream.text(100, 20_000).unwrap()).unwrap());
    for (at, line) in whole.iter().enumerate().step_by(997) {
        let mut alone = Vec::new();
        stream.factors(100 + at as u64).unwrap().line(&mut alone);
        assert_eq!(line.as_bytes(), alone);
    }
    // Recorded: a stream that changed would silently repeat or skip what a resumed run has seen.
    assert_eq!(whole[..2], ["(30-5*i)*(i+4)=-5*i**2+10*i+120", "(-6*y-17)*(y-13)=-6*y**2+61*y+221"]);
    assert_ne!(whole[..10], text(&String::from_utf8(Generator::new(8, &[]).text(100, 10).unwrap()).unwrap()));
}

#[test]
fn excluded_lines_never_come_and_leave_the_others_where_they_are() {
    let free = Generator::new(3, &[]);
    let all: Vec<_> = (0..5000).map(|index| free.factors(index).unwrap()).collect();
    let keys: Vec<_> = all.iter().step_by(3).map(Factors::key).collect();
    let stream = Generator::new(3, &keys);
    assert_eq!(stream.excluded(), keys.iter().collect::<HashSet<_>>().len());
    for (index, factors) in all.iter().enumerate() {
        let drawn = stream.factors(index as u64).unwrap();
        assert!(!keys.contains(&drawn.key()));
        assert!(drawn == *factors || keys.contains(&factors.key()));
    }
}

#[test]
fn a_stream_of_which_nothing_is_left_ends_with_an_error() {
    let mut word = super::law::word(3, 9);
    let mut drawn = Vec::new();
    for _ in 0..1024 {
        drawn.push(super::law::draw(word).key());
        word = super::law::next_word(word);
    }
    let stream = Generator::new(3, &drawn);
    let error = stream.factors(9).unwrap_err().to_string();
    assert!(error.contains("line 9 of stream 3") && error.contains("exclude fewer"), "{error}");
    assert!(stream.factors(8).is_ok());
    assert!(stream.text(0, 10).is_err());
}

#[test]
fn a_batch_holds_the_ids_of_the_lines() {
    let (generator, tokenizer) = (Generator::new(5, &[]), tokenizer().unwrap());
    let count = 9000;
    let lines = generator.text(40, count).unwrap();
    let (mut source, mut target) = (vec![9; count * LONGEST_LEFT], vec![9; count * (LONGEST_RIGHT + 1)]);
    let (width, target_width) = generator.batch(40, count, &tokenizer, &mut source, &mut target, None).unwrap();
    let decoded = |ids: &[u8], width: usize| tokenizer.decode_batch(&ids[..count * width], count, width).unwrap();
    let (lefts, rights) = (decoded(&source, width), decoded(&target, target_width));
    for ((line, left), right) in String::from_utf8(lines).unwrap().lines().zip(lefts.lines()).zip(rights.lines()) {
        assert_eq!(line, format!("{left}={right}"));
    }
    assert!(target.chunks(target_width).take(count).all(|row| {
        let end = row.iter().position(|&id| id == END).unwrap();
        row[end + 1..].iter().all(|&id| id == PAD)
    }));
    let error =
        generator.batch(40, count, &tokenizer, &mut source, &mut target, Some((29, 20))).unwrap_err().to_string();
    assert!(error.contains("pad_to (29, 20)"), "{error}");
    let other = CharTokenizer::from_characters("0123456789").unwrap();
    let error = generator.batch(0, 1, &other, &mut source, &mut target, None).unwrap_err().to_string();
    assert!(error.contains("no character '('"), "{error}");
    assert!(generator.batch(0, count + 1, &tokenizer, &mut source, &mut target, None).is_err());
    assert_eq!(generator.batch(0, 0, &tokenizer, &mut [], &mut [], None).unwrap(), (0, 0));
}

#[test]
fn ranges_beyond_the_numbers_are_refused() {
    let stream = Generator::new(0, &[]);
    assert!(stream.text(u64::MAX - 1, 1).is_ok());
    assert!(stream.text(u64::MAX, 2).unwrap_err().to_string().contains("numbers of lines end"));
    assert!(stream.text(0, usize::MAX).unwrap_err().to_string().contains("at once"));
}

#[test]
fn refusals_carry_column_fault_and_numbers() {
    let fault = |left: &str| match Factors::parse(left) {
        Err(Error::Left { column, fault, .. }) => (column, fault),
        other => panic!("{left}: {other:?}"),
    };
    for (left, column, wanted) in [
        ("2*b**2", 3, LeftFault::Character { character: 'b' }),
        ("(x+1)*(x+2)*(x+3)*(x+4)*(x+5)*(x+6)", 30, LeftFault::Length { characters: 35 }),
        ("(x+1", 5, LeftFault::Expected { what: "')'" }),
        ("7", 2, LeftFault::NoSymbol),
        ("(x+1)*(y+2)", 8, LeftFault::AnotherSymbol),
        ("99999*x**2", 1, LeftFault::Digits { digits: 5 }),
        ("77*x**2", 8, LeftFault::Square { coefficient: 77 }),
        ("(x+32)**2", 7, FactorFault::Constant { value: 32 }.into()),
        ("12*x*(x+2)", 11, FactorFault::Coefficient { value: 12 }.into()),
        ("1*x**2", 1, LeftFault::Spelling { printed: "x**2".to_owned() }),
    ] {
        assert_eq!(fault(left), (column, wanted), "{left}");
    }
    let one = Linear::new(1, 0).unwrap();
    assert_eq!(Factors::new(None, b'q', one, one), Err(FactorFault::Letter { letter: 'q' }));

    let generator = Generator::new(0, &[]);
    assert!(matches!(generator.text(u64::MAX, 2), Err(Error::Range { start: u64::MAX, count: 2 })));
    let (count, tokenizer) = ((1 << 24) + 1, tokenizer().unwrap());
    assert!(
        matches!(generator.text(0, count), Err(Error::Count { count: found, limit }) if found == count && limit < count)
    );
    let (source, target) = (&mut [0; 58], &mut [0; 59]);
    let error = generator.batch(0, 2, &tokenizer, source, target, None).unwrap_err();
    assert!(matches!(error, Error::Buffer { side: "target", rows: 2, width: 30, bytes: 59 }), "{error:?}");
    assert!(matches!(octavo_core::Error::from(error), octavo_core::Error::Shape(_)));
    let error = generator.batch(3, 1, &tokenizer, source, target, Some((1, 30))).unwrap_err();
    assert!(
        matches!(error, Error::PadTo { pad_to: (1, 30), first: 3, last: 3, longest } if longest.0 > 1),
        "{error:?}"
    );
    let digits = CharTokenizer::from_characters("0123456789").unwrap();
    let error = generator.batch(0, 1, &digits, source, target, None).unwrap_err();
    assert!(matches!(error, Error::Tokenizer { character: '(' }), "{error:?}");
    assert!(matches!(octavo_core::Error::from(error), octavo_core::Error::Data(_)));
}

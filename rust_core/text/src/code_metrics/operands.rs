//! When two operands are one: equality of names, attributes and constants as Python's `==` and `hash` see it.
//!
//! A name, an attribute and a string with the same text are equal, and so are `1`, `1.0` and `True`.

use std::borrow::Cow;

use ruff_python_ast::{Expr, ExprStringLiteral, Number};

/// Decimal digits up to which a large integer is compared by value; CPython refuses longer literals.
const MAX_DECIMAL_DIGITS: usize = 4_300;

/// An operand that may equal another.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) enum Operand<'a> {
    Text(Cow<'a, str>),
    Bytes(Vec<u8>),
    Integer(u64),
    /// At least 2^64: the digits in base 2^32, least significant first.
    Large(Vec<u32>),
    /// Too long to compare by value.
    Literal(String),
    /// Bits of a float that is no integer.
    Float(u64),
    /// Bits of the imaginary part.
    Imaginary(u64),
    None,
    Ellipsis,
}

/// The operand an expression is, or `None` when it equals nothing but itself.
pub(super) fn operand<'a>(source: &'a str, expression: &'a Expr) -> Option<Operand<'a>> {
    Some(match expression {
        Expr::Name(name) => Operand::Text(Cow::Borrowed(name.id.as_str())),
        Expr::Attribute(attribute) => Operand::Text(Cow::Borrowed(attribute.attr.as_str())),
        Expr::StringLiteral(string) => Operand::Text(text(source, string)),
        Expr::BytesLiteral(bytes) => Operand::Bytes(bytes.value.bytes().collect()),
        Expr::BooleanLiteral(boolean) => Operand::Integer(u64::from(boolean.value)),
        Expr::NoneLiteral(_) => Operand::None,
        Expr::EllipsisLiteral(_) => Operand::Ellipsis,
        Expr::NumberLiteral(number) => match &number.value {
            Number::Int(integer) => integer
                .as_u64()
                .map_or_else(|| large(&integer.to_string()), Operand::Integer),
            Number::Float(float) => from_float(*float),
            Number::Complex { imag, .. } if *imag == 0.0 => Operand::Integer(0),
            Number::Complex { imag, .. } => Operand::Imaginary(imag.to_bits()),
        },
        _ => return None,
    })
}

/// The text of a string. The parser turns lone surrogates into U+FFFD; for those the spelling is added.
fn text<'a>(source: &'a str, string: &'a ExprStringLiteral) -> Cow<'a, str> {
    let value = string.value.to_str();
    if !value.contains('\u{fffd}') {
        return Cow::Borrowed(value);
    }
    let spelling = &source[string.range.start().to_usize()..string.range.end().to_usize()];
    let spelling = spelling.trim_matches(['"', '\'']).to_ascii_lowercase();
    if spelling.contains("\\ud") || spelling.contains("\\u0000d") {
        Cow::Owned(format!("{value}\0{spelling}"))
    } else {
        Cow::Borrowed(value)
    }
}

/// An integer literal of 2^64 and more.
fn large<'a>(literal: &str) -> Operand<'a> {
    let digits = literal.replace('_', "").to_ascii_lowercase();
    let (radix, digits) = match digits.get(..2) {
        Some("0x") => (16, &digits[2..]),
        Some("0o") => (8, &digits[2..]),
        Some("0b") => (2, &digits[2..]),
        _ => (10, digits.as_str()),
    };
    if digits.len() > MAX_DECIMAL_DIGITS {
        return Operand::Literal(literal.to_owned());
    }
    let mut limbs: Vec<u32> = Vec::new();
    for digit in digits.chars().filter_map(|digit| digit.to_digit(radix)) {
        let mut carry = u64::from(digit);
        for limb in &mut limbs {
            let product = u64::from(*limb) * u64::from(radix) + carry;
            *limb = product as u32;
            carry = product >> 32;
        }
        if carry > 0 {
            limbs.push(carry as u32);
        }
    }
    Operand::Large(limbs)
}

fn from_float<'a>(float: f64) -> Operand<'a> {
    if !float.is_finite() || float.fract() != 0.0 {
        return Operand::Float(float.to_bits());
    }
    if float < 18_446_744_073_709_551_616.0 {
        return Operand::Integer(float as u64);
    }
    let exponent = (float.to_bits() >> 52) as usize - 1_075;
    let mantissa = float.to_bits() & ((1 << 52) - 1) | (1 << 52);
    let mut limbs = vec![0; exponent / 32];
    let mut rest = u128::from(mantissa) << (exponent % 32);
    while rest > 0 {
        limbs.push(rest as u32);
        rest >>= 32;
    }
    Operand::Large(limbs)
}

#[cfg(test)]
mod tests {
    use super::{from_float, large};

    /// A float and an integer of the same value are one operand, however large.
    #[test]
    fn large_numbers_are_equal_by_value() {
        assert_eq!(from_float(1e20), large("100_000_000_000_000_000_000"));
        assert_eq!(
            from_float(18_446_744_073_709_551_616.0),
            large("0x1_0000_0000_0000_0000")
        );
        assert_eq!(large("0x1FFFFFFFFFFFFFFFF"), large("36893488147419103231"));
        assert_eq!(from_float(1e300), large(&format!("{:.0}", 1e300)));
        assert_ne!(from_float(1e20), large("100000000000000000001"));
    }
}

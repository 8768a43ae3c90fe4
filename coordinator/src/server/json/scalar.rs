//! Numbers and strings of a JSON text. Vectors take a short cut that is exact, since they are
//! nearly all of a large batch.

use super::cursor::{Cursor, Kind};
use super::refusal::{Read, Refusal};
use hopbine_proto::status::Code;
use std::borrow::Cow;

/// The powers of ten that are exact in f64.
const POWERS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16,
    1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
];

impl<'a> Cursor<'a> {
    /// An array of numbers that are finite as f32, each the f32 nearest to what is written.
    pub fn floats(&mut self, capacity: usize, most: usize) -> Read<Vec<f32>> {
        let mut floats = Vec::with_capacity(capacity.min(most));
        self.expect(Kind::Array, "an array of numbers")?;
        self.array(|place, cursor| {
            if place == most {
                let detail = format!("more than {most} components");
                return Err(Refusal::new(Code::DimensionMismatch, detail));
            }
            floats.push(cursor.component()?);
            Ok(())
        })?;
        Ok(floats)
    }

    #[inline]
    fn component(&mut self) -> Read<f32> {
        self.skip_space();
        let value = match self.short_decimal() {
            Some(value) => value,
            None => self.long_component()?,
        };
        if value.is_finite() { Ok(value) } else { Err(not_finite("beyond the range of f32")) }
    }

    /// A number of at most 19 digits without exponent whose f32 follows from one exact f64
    /// division (Clinger 1990), or `None` with the cursor unmoved.
    #[inline]
    fn short_decimal(&mut self) -> Option<f32> {
        let rest = &self.text.as_bytes()[self.at..];
        let negative = rest.first() == Some(&b'-');
        let start = usize::from(negative);
        let mut mantissa = 0u64;
        let mut place = start;
        while let Some(digit) = rest.get(place).filter(|byte| byte.is_ascii_digit()) {
            mantissa = mantissa.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'));
            place += 1;
        }
        let whole = place - start;
        let mut fraction = 0;
        if whole > 0 && rest.get(place) == Some(&b'.') {
            place += 1;
            let first = place;
            while let Some(digit) = rest.get(place).filter(|byte| byte.is_ascii_digit()) {
                mantissa = mantissa.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'));
                place += 1;
            }
            fraction = place - first;
            if fraction == 0 {
                return None;
            }
        }
        let leading_zero = whole > 1 && rest[start] == b'0';
        let exponent = matches!(rest.get(place), Some(b'e' | b'E' | b'.'));
        if whole == 0 || leading_zero || exponent || whole + fraction > 19 || fraction > 22 {
            return None;
        }
        if mantissa > 1 << 53 {
            return None;
        }
        // Both operands are exact, so `wide` is the f64 nearest to the decimal. Rounding it once
        // more is only wrong when it hit the middle between two f32; tiny values have other ones.
        let wide = mantissa as f64 / POWERS[fraction];
        let middle = wide.to_bits() & 0x1fff_ffff == 0x1000_0000;
        if middle || (mantissa != 0 && wide < f64::from(f32::MIN_POSITIVE)) {
            return None;
        }
        self.at += place;
        Some(if negative { -(wide as f32) } else { wide as f32 })
    }

    fn long_component(&mut self) -> Read<f32> {
        match self.kind() {
            Kind::Number => {}
            Kind::Null => {
                return Err(not_finite("null is not a number")
                    .hint("many JSON writers turn NaN and infinity into null"));
            }
            Kind::Text => {
                let text = self.text_here()?;
                return Err(match text.parse::<f64>() {
                    Ok(value) if !value.is_finite() => not_finite(&format!("found \"{text}\"")),
                    _ => Refusal::new(Code::InvalidRequest, "expected a number, found a string"),
                });
            }
            _ => {
                let rest = &self.text[self.at..];
                if rest.starts_with("NaN") || rest.starts_with("Infinity") {
                    return Err(not_finite("NaN and infinity are no JSON numbers"));
                }
                return Err(self.unexpected("a number"));
            }
        }
        if self.text[self.at..].starts_with("-Infinity") {
            return Err(not_finite("NaN and infinity are no JSON numbers"));
        }
        let text = self.number()?;
        text.parse().map_err(|_| not_finite(&format!("{text} is no f32")))
    }

    /// The text of the number that starts here, by the grammar of RFC 8259.
    pub(super) fn number(&mut self) -> Read<&'a str> {
        let start = self.at;
        let bytes = self.text.as_bytes();
        let digits = |mut at: usize| {
            while bytes.get(at).is_some_and(u8::is_ascii_digit) {
                at += 1;
            }
            at
        };
        let mut at = start + usize::from(bytes.get(start) == Some(&b'-'));
        let whole = at;
        at = digits(at);
        let mut good = at > whole && !(at > whole + 1 && bytes[whole] == b'0');
        if bytes.get(at) == Some(&b'.') {
            let fraction = at + 1;
            at = digits(fraction);
            good &= at > fraction;
        }
        if let Some(b'e' | b'E') = bytes.get(at) {
            let sign = matches!(bytes.get(at + 1), Some(b'+' | b'-'));
            let exponent = at + 1 + usize::from(sign);
            at = digits(exponent);
            good &= at > exponent;
        }
        if !good {
            return Err(self.syntax("malformed number"));
        }
        self.at = at;
        Ok(&self.text[start..at])
    }

    /// The string whose opening quote stands here.
    pub(super) fn text_here(&mut self) -> Read<Cow<'a, str>> {
        self.at += 1;
        let start = self.at;
        loop {
            match self.byte() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(Cow::Borrowed(&self.text[start..self.at - 1]));
                }
                Some(b'\\') => return self.text_with_escapes(start),
                Some(0..0x20) => return Err(self.syntax("a control character in a string")),
                Some(_) => self.at += 1,
                None => return Err(self.syntax("a string without end")),
            }
        }
    }

    fn text_with_escapes(&mut self, start: usize) -> Read<Cow<'a, str>> {
        let mut text = self.text[start..self.at].to_owned();
        let mut plain = self.at;
        loop {
            match self.byte() {
                Some(b'"') => {
                    text.push_str(&self.text[plain..self.at]);
                    self.at += 1;
                    return Ok(Cow::Owned(text));
                }
                Some(b'\\') => {
                    text.push_str(&self.text[plain..self.at]);
                    self.at += 1;
                    text.push(self.escape()?);
                    plain = self.at;
                }
                Some(0..0x20) => return Err(self.syntax("a control character in a string")),
                Some(_) => self.at += 1,
                None => return Err(self.syntax("a string without end")),
            }
        }
    }

    fn escape(&mut self) -> Read<char> {
        let escaped = self.byte();
        self.at += 1;
        Ok(match escaped {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => return self.unicode_escape(),
            _ => {
                self.at -= 1;
                return Err(self.syntax("unknown escape"));
            }
        })
    }

    fn unicode_escape(&mut self) -> Read<char> {
        let first = self.four_hex_digits()?;
        let point = if (0xd800..0xdc00).contains(&first) {
            if !self.text.as_bytes()[self.at..].starts_with(b"\\u") {
                return Err(self.syntax("half of a surrogate pair"));
            }
            self.at += 2;
            let second = self.four_hex_digits()?;
            if !(0xdc00..0xe000).contains(&second) {
                return Err(self.syntax("half of a surrogate pair"));
            }
            0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00)
        } else {
            first
        };
        char::from_u32(point).ok_or_else(|| self.syntax("half of a surrogate pair"))
    }

    fn four_hex_digits(&mut self) -> Read<u32> {
        let digits = self.text.as_bytes().get(self.at..self.at + 4);
        let digits = digits.filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let Some(digits) = digits else {
            return Err(self.syntax("expected four hexadecimal digits"));
        };
        self.at += 4;
        Ok(digits
            .iter()
            .fold(0, |value, digit| value * 16 + (*digit as char).to_digit(16).unwrap_or_default()))
    }
}

fn not_finite(detail: &str) -> Refusal {
    Refusal::new(Code::NotFinite, format!("a vector's components are finite numbers: {detail}"))
}

#[cfg(test)]
mod tests {
    use super::super::read;
    use super::*;
    use hopbine_proto::status::Problem;
    use proptest::prelude::*;

    fn floats(body: &str) -> Result<Vec<f32>, Problem> {
        read(body.as_bytes(), |cursor| cursor.floats(4, 4)).map_err(Problem::from)
    }

    proptest! {
        #[test]
        fn components_are_the_nearest_f32(
            digits in 0u64..,
            shift in 0usize..24,
            negative: bool,
            bits: u32,
        ) {
            let digits = digits >> (shift * 2);
            let text = format!("{digits:0width$}", width = shift + 1);
            let (whole, fraction) = text.split_at(text.len() - shift);
            let whole = match whole.trim_start_matches('0') { "" => "0", whole => whole };
            let sign = if negative { "-" } else { "" };
            let dot = if fraction.is_empty() { "" } else { "." };
            let decimal = format!("{sign}{whole}{dot}{fraction}");
            let nearest: f32 = decimal.parse().expect("a decimal");
            prop_assert_eq!(floats(&format!("[{decimal}]")), Ok(vec![nearest]));
            let value = f32::from_bits(bits);
            if value.is_finite() {
                for text in [format!("{value}"), format!("{value:e}"), format!("{}", f64::from(value))] {
                    let read = floats(&format!("[ {text} ]")).expect("a finite number");
                    prop_assert_eq!(read[0].to_bits(), value.to_bits());
                }
            }
        }
    }

    #[test]
    fn the_middle_between_two_f32_goes_to_the_even_one() {
        for text in ["16777217", "16777219", "16777217.0000000001", "0.000000000000000000000000"] {
            let nearest: f32 = text.parse().expect("a decimal");
            assert_eq!(floats(&format!("[{text}]")), Ok(vec![nearest]));
        }
    }

    #[test]
    fn what_is_no_finite_number_is_named() {
        let cases = [
            ("[1, 1e999]", Code::NotFinite, "/1"),
            ("[3.5e38]", Code::NotFinite, "/0"),
            ("[1, 2, null]", Code::NotFinite, "/2"),
            ("[NaN]", Code::NotFinite, "/0"),
            ("[-Infinity]", Code::NotFinite, "/0"),
            ("[\"Infinity\"]", Code::NotFinite, "/0"),
            ("[\"1.0\"]", Code::InvalidRequest, "/0"),
            ("[0, [1]]", Code::InvalidRequest, "/1"),
            ("[1.]", Code::InvalidRequest, "/0"),
            ("[01]", Code::InvalidRequest, "/0"),
            ("[-]", Code::InvalidRequest, "/0"),
            ("[1,]", Code::InvalidRequest, "/1"),
            ("[1 2]", Code::InvalidRequest, ""),
            ("[1, 2, 3, 4, 5]", Code::DimensionMismatch, "/4"),
            ("{}", Code::InvalidRequest, ""),
        ];
        for (body, code, pointer) in cases {
            let problem = floats(body).expect_err(body);
            assert_eq!(
                (problem.code, problem.errors[0].pointer.as_str()),
                (code, pointer),
                "{body}"
            );
        }
    }
}

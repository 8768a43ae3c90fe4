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
        self.expect(Kind::Array, "an array of numbers")?;
        let mut floats = Vec::with_capacity(capacity.min(most));
        self.enter()?;
        if self.byte() == Some(b']') {
            self.leave();
            return Ok(floats);
        }
        loop {
            let place = floats.len();
            if place == most {
                let detail = format!("more than {most} components");
                return Err(Refusal::new(Code::DimensionMismatch, detail).within(place));
            }
            match short_decimal(self.text.as_bytes(), self.at) {
                Some((value, end)) => {
                    floats.push(value);
                    self.at = end;
                }
                None => {
                    let value = self.long_component().map_err(|refusal| refusal.within(place))?;
                    floats.push(value);
                }
            }
            if !self.another(b']')? {
                self.room.take(size_of_val(&floats[..]))?;
                return Ok(floats);
            }
        }
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
        let value = text.parse().ok().filter(|value: &f32| value.is_finite());
        value.ok_or_else(|| not_finite(&format!("{text} is beyond the range of f32")))
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

/// The f32 nearest to the decimal at `at`, and where it ends; `None` when the long way is needed:
/// for exponents, more than 19 significant digits, and values next to the middle of two f32.
///
/// The digits make a whole number that a power of ten divides (Clinger 1990). Both roundings
/// together leave an f64 within two units of its last place, so rounding it once more finds the
/// nearest f32 unless the middle of two lies within that distance.
#[inline(always)]
fn short_decimal(bytes: &[u8], at: usize) -> Option<(f32, usize)> {
    let negative = bytes.get(at) == Some(&b'-');
    let whole = at + usize::from(negative);
    let (mut mantissa, mut place) = digits(bytes, whole, 0);
    let leading_zero = bytes.get(whole) == Some(&b'0');
    if place == whole || (leading_zero && place > whole + 1) {
        return None;
    }
    let mut significant = if leading_zero { 0 } else { place - whole };
    let mut fraction = 0;
    if bytes.get(place) == Some(&b'.') {
        let first = place + 1;
        let mut start = first;
        while significant == 0 && bytes.get(start) == Some(&b'0') {
            start += 1;
        }
        (mantissa, place) = digits(bytes, start, mantissa);
        significant += place - start;
        fraction = place - first;
        if fraction == 0 {
            return None;
        }
    }
    let exponent = matches!(bytes.get(place), Some(b'e' | b'E'));
    if exponent || significant > 19 || fraction >= POWERS.len() {
        return None;
    }
    let wide = mantissa as f64 / POWERS[fraction];
    // The 29 bits that an f32 has no room for; the middle is their upper half.
    let cut = (wide.to_bits() & 0x1fff_ffff) as i64;
    let near_middle = (cut - 0x1000_0000).abs() <= 2;
    if near_middle || (mantissa != 0 && wide < f64::from(f32::MIN_POSITIVE)) {
        return None;
    }
    let value = if negative { -(wide as f32) } else { wide as f32 };
    Some((value, place))
}

/// Appends the digits at `at` to `number`, which wraps beyond 19 of them; also where they end.
#[inline(always)]
fn digits(bytes: &[u8], mut at: usize, mut number: u64) -> (u64, usize) {
    while let Some(eight) = bytes.get(at..at + 8).and_then(|eight| eight.try_into().ok()) {
        let Some(value) = eight_digits(u64::from_le_bytes(eight)) else { break };
        number = number.wrapping_mul(100_000_000).wrapping_add(value);
        at += 8;
    }
    while let Some(digit) = bytes.get(at).filter(|byte| byte.is_ascii_digit()) {
        number = number.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'));
        at += 1;
    }
    (number, at)
}

/// The number behind eight ASCII digits, first digit in the lowest byte, or `None` when one of
/// them is no digit. Pairs, then fours, then eights are joined in parallel (Lemire 2022).
#[inline(always)]
fn eight_digits(text: u64) -> Option<u64> {
    const ZEROS: u64 = 0x3030_3030_3030_3030;
    let high = text & 0xf0f0_f0f0_f0f0_f0f0;
    let above_nine = text.wrapping_add(0x0606_0606_0606_0606) & 0xf0f0_f0f0_f0f0_f0f0;
    if high != ZEROS || above_nine != ZEROS {
        return None;
    }
    let ones = text - ZEROS;
    let pairs = (ones * 10 + (ones >> 8)) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs * 100 + (pairs >> 16)) & 0x0000_ffff_0000_ffff;
    Some((fours * 10_000 + (fours >> 32)) & 0xffff_ffff)
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
                let wide = f64::from(value);
                for text in [format!("{value}"), format!("{value:e}"), format!("{wide}")] {
                    let read = floats(&format!("[ {text} ]")).expect("a finite number");
                    prop_assert_eq!(read[0].to_bits(), value.to_bits());
                }
            }
        }
    }

    proptest! {
        #[test]
        fn eight_digits_are_read_at_once_only_when_all_are_digits(
            text: [u8; 8],
            number in 0u64..100_000_000,
        ) {
            let digits = format!("{number:08}");
            let eight = digits.as_bytes().try_into().map(u64::from_le_bytes);
            prop_assert_eq!(eight.ok().and_then(eight_digits), Some(number));
            let all = text.iter().all(u8::is_ascii_digit);
            prop_assert_eq!(eight_digits(u64::from_le_bytes(text)).is_some(), all);
        }

        #[test]
        fn decimals_next_to_the_middle_of_two_f32_round_to_the_nearest(
            bits in 0u32..0x7f00_0000,
            off in -3i64..=3,
        ) {
            let (below, above) = (f32::from_bits(bits), f32::from_bits(bits + 1));
            let middle = (f64::from(below) + f64::from(above)) / 2.0;
            let near = f64::from_bits((middle.to_bits() as i64 + off) as u64);
            let decimal = format!("{near}");
            let nearest: f32 = decimal.parse().expect("a decimal");
            let read = floats(&format!("[{decimal}]")).expect("finite");
            prop_assert_eq!(read[0].to_bits(), nearest.to_bits());
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

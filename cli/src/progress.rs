//! Progress of long work on standard error: a bar on a terminal, else one line every five seconds.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

const LINE_EVERY: Duration = Duration::from_secs(5);
const BAR_EVERY: Duration = Duration::from_millis(100);
const BAR_WIDTH: usize = 30;

/// The progress of one piece of work.
pub struct Progress {
    terminal: bool,
    started: Instant,
    shown: Option<Instant>,
}

impl Progress {
    /// Starts the clock.
    pub fn start() -> Self {
        let terminal = io::stderr().is_terminal();
        Self { terminal, started: Instant::now(), shown: None }
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Says where the work is, unless it was said a moment ago. `share`: 0 to 1, when known.
    pub fn tick(&mut self, share: Option<f64>, text: impl FnOnce() -> String) {
        let every = if self.terminal { BAR_EVERY } else { LINE_EVERY };
        let last = self.shown.unwrap_or(self.started);
        if last.elapsed() < every {
            return;
        }
        self.shown = Some(Instant::now());
        let line = match share {
            Some(share) if self.terminal => format!("{} {}", bar(share), text()),
            Some(share) => format!("{:3.0} % {}", share * 100.0, text()),
            None => text(),
        };
        // Progress is a courtesy: a closed standard error must not stop the work.
        let _ = if self.terminal {
            write!(io::stderr(), "\r\x1b[K{line}")
        } else {
            writeln!(io::stderr(), "{line}")
        };
    }

    /// Removes the bar, if one is shown.
    pub fn clear(&mut self) {
        if self.terminal && self.shown.take().is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

fn bar(share: f64) -> String {
    let full = (share.clamp(0.0, 1.0) * BAR_WIDTH as f64) as usize;
    format!("[{}{}]", "=".repeat(full), " ".repeat(BAR_WIDTH - full))
}

/// `1234567` as `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_and_bars_have_one_width() {
        assert_eq!(["0", "999", "1,000", "1,234,567"], [0, 999, 1000, 1_234_567].map(grouped)[..]);
        assert_eq!(bar(0.5).len(), bar(2.0).len());
        assert!(bar(0.5).contains("=== "));
    }
}

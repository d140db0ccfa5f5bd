//! Text for people.

use std::io::{self, Write};

use anstyle::{AnsiColor, Style};

use super::{JudgedObject, Outcome, Printer, Totals};
use crate::text::printable;

const DENY: Style = AnsiColor::Red.on_default().bold();
const WARN: Style = AnsiColor::Yellow.on_default().bold();
const FAINT: Style = Style::new().dimmed();

pub(super) struct TextPrinter<W> {
    pub(super) out: W,
}

impl<W: Write> Printer for TextPrinter<W> {
    fn judged(&mut self, judged: &JudgedObject) -> io::Result<()> {
        let (style, verdict) = match judged.verdict {
            Outcome::Allow => return Ok(()),
            Outcome::Warn => (WARN, "warn"),
            Outcome::Deny => (DENY, "deny"),
            Outcome::NotJudged => (FAINT, "not judged"),
        };
        let (source, title) = (printable(&judged.source.to_string()), printable(&judged.title));
        writeln!(self.out, "{source}  {style}{verdict}{style:#}  {title}")?;
        for finding in &judged.findings {
            let field = if finding.field.is_empty() { "-" } else { &finding.field };
            let (rule, message) = (finding.rule, printable(&finding.message));
            writeln!(self.out, "  {rule}  {FAINT}{}{FAINT:#}  {message}", printable(field))?;
        }
        for why in &judged.not_judged {
            writeln!(self.out, "  not judged: {}", printable(why))?;
        }
        writeln!(self.out)
    }

    fn finish(&mut self, totals: &Totals) -> io::Result<()> {
        writeln!(self.out, "{totals}")?;
        self.out.flush()
    }
}

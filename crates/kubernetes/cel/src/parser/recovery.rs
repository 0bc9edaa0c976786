//! Reports syntax errors and continues after them, as ANTLR's default error strategy does.

use super::{Abort, Failure, MAX_RECOVERIES, MAX_REPORTS, MAX_SKIPPED, Parser};
use crate::error::Issue;
use crate::lexer::escape_white_space;
use crate::token::{Kind, Set, Token};

/// The state of the recovery from syntax errors.
#[derive(Default)]
pub(super) struct Recovery {
    /// An error was reported, and no token was accepted since: further errors are not reported.
    active: bool,
    attempts: u32,
    reports: usize,
    /// The position of the last error, and the states in which errors occurred there.
    last_index: Option<usize>,
    last_states: u64,
}

impl Recovery {
    pub(super) fn end(&mut self) {
        self.active = false;
        self.last_index = None;
        self.last_states = 0;
    }
}

/// A position in the grammar at which an error can occur.
#[derive(Clone, Copy)]
pub(super) struct State(pub(super) u8);

impl Parser<'_> {
    fn report(&mut self, token: Token, message: &str) -> Result<(), Abort> {
        let location = self.source.location(token.start);
        if self.recovery.reports >= MAX_REPORTS {
            let message = format!("Syntax error: More than {MAX_REPORTS} syntax errors");
            self.issues.push(Issue { location, message });
            return Err(Abort);
        }
        self.recovery.reports += 1;
        self.issues.push(Issue { location, message: format!("Syntax error: {message}") });
        Ok(())
    }

    fn display(&self, token: Token) -> String {
        if token.kind == Kind::End {
            return "'<EOF>'".into();
        }
        format!("'{}'", escape_white_space(&self.text(token)))
    }

    /// Adds the tokens that can follow the active rules, while these can end.
    fn expected(&self, mut set: Set) -> Set {
        for follow in self.follow.iter().rev() {
            if !set.can_end() {
                break;
            }
            set = set.tokens().or(*follow);
        }
        set.tokens()
    }

    /// Returns all tokens at which an active rule can continue.
    fn recovery_set(&self) -> Set {
        self.follow.iter().fold(Set::of(&[]), |all, set| all.or(*set)).tokens()
    }

    fn report_unwanted(&mut self, expected: Set) -> Result<(), Abort> {
        if self.recovery.active {
            return Ok(());
        }
        self.recovery.active = true;
        let token = self.token();
        let message = format!("extraneous input {} expecting {expected}", self.display(token));
        self.report(token, &message)
    }

    /// Skips the current token if the next one is expected.
    fn delete_token(&mut self, expected: Set) -> Result<bool, Abort> {
        if !expected.has(self.kind_at(1)) {
            return Ok(false);
        }
        self.report_unwanted(expected)?;
        self.skip();
        self.recovery.end();
        Ok(true)
    }

    fn skip(&mut self) {
        if self.kind() != Kind::End {
            self.position += 1;
        }
    }

    fn skip_until(&mut self, set: Set, limit: bool) -> Result<(), Abort> {
        let mut skipped = 0;
        while self.kind() != Kind::End && !set.has(self.kind()) {
            if limit && skipped >= MAX_SKIPPED {
                let message = format!("error recovery token lookahead limit exceeded: {MAX_SKIPPED}");
                return Err(self.abort(&message));
            }
            skipped += 1;
            self.skip();
        }
        Ok(())
    }

    fn count_attempt(&mut self) -> Result<(), Abort> {
        if self.recovery.attempts == MAX_RECOVERIES {
            let message = format!("error recovery attempt limit exceeded: {MAX_RECOVERIES}");
            self.report(self.token(), &message)?;
            return Err(Abort);
        }
        self.recovery.attempts += 1;
        Ok(())
    }

    /// Checks that the current token can begin one of the next alternatives.
    pub(super) fn sync(&mut self, expected: Set) -> Result<(), Failure> {
        if self.recovery.active || expected.has(self.kind()) || self.delete_token(expected)? {
            return Ok(());
        }
        Err(Failure::Mismatch(expected))
    }

    /// Checks that the current token can begin another round of a loop, or the part after it.
    pub(super) fn sync_loop(&mut self, expected: Set) -> Result<(), Abort> {
        if self.recovery.active || expected.has(self.kind()) {
            return Ok(());
        }
        self.report_unwanted(expected)?;
        self.skip_until(expected.or(self.recovery_set()), false)
    }

    /// Accepts a token of this kind. `after` are the tokens that can come after it in the rule.
    ///
    /// Returns `None` if the token is missing, and the current token can come after it.
    pub(super) fn expect(&mut self, kind: Kind, after: Set) -> Result<Option<Token>, Failure> {
        if self.kind() == kind {
            return Ok(Some(self.accept()));
        }
        self.count_attempt()?;
        let expected = Set::of(&[kind]);
        if self.delete_token(expected)? {
            return Ok(Some(self.accept()));
        }
        if self.expected(after).has(self.kind()) {
            if !self.recovery.active {
                self.recovery.active = true;
                let token = self.token();
                let message = format!("missing {expected} at {}", self.display(token));
                self.report(token, &message)?;
            }
            return Ok(None);
        }
        Err(Failure::Mismatch(expected))
    }

    /// Reports the failure of a rule and skips the tokens at which no rule can continue.
    pub(super) fn recover(&mut self, failure: &Failure, State(state): State) -> Result<(), Abort> {
        if matches!(failure, Failure::Abort) {
            return Err(Abort);
        }
        if !self.recovery.active {
            self.recovery.active = true;
            match failure {
                Failure::Mismatch(expected) => {
                    let token = self.token();
                    let expected = self.expected(*expected);
                    let message = format!("mismatched input {} expecting {expected}", self.display(token));
                    self.report(token, &message)?;
                }
                Failure::NoAlternative(index) => self.report_no_alternative(*index)?,
                Failure::Abort => {}
            }
        }
        self.count_attempt()?;
        let bit = 1 << state;
        if self.recovery.last_index == Some(self.position) && self.recovery.last_states & bit != 0 {
            self.skip();
        }
        self.recovery.last_index = Some(self.position);
        self.recovery.last_states |= bit;
        self.skip_until(self.recovery_set(), true)
    }

    fn report_no_alternative(&mut self, index: usize) -> Result<(), Abort> {
        let offending = self.tokens[index.min(self.tokens.len() - 1)];
        let first = self.token();
        let input = if first.kind == Kind::End {
            "<EOF>".to_owned()
        } else {
            self.source.text(first.start, offending.end)
        };
        let keyword = matches!(offending.kind, Kind::True | Kind::False | Kind::Null);
        let message = if keyword && first.kind == Kind::Dot && index == self.position + 1 {
            format!("mismatched input {} expecting IDENTIFIER", self.display(offending))
        } else {
            format!("no viable alternative at input '{}'", escape_white_space(&input))
        };
        self.report(offending, &message)
    }
}

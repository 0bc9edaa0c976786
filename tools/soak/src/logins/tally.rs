//! Counts, durations and the table of a run.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::ensure;
use pinniped_test_support::certs::Pair;

use super::failure::{Class, Failure, classify};
use super::target::{Login, Route, Target};

/// Maximum number of recorded problems, and of recorded texts; the first ones are sufficient.
const MAX_TEXTS: usize = 20;

/// The counts of one kind of route.
#[derive(Clone, Debug, Default)]
struct Counts {
    /// Logins that were sent.
    logins: u32,
    /// Credentials with the identity of the user.
    verified: u32,
    /// Logins with the password of another user that were refused.
    refused: u32,
    /// Credentials that were used, with the identity of the user.
    used: u32,
    /// Failures of logins on connections to a killed replica.
    killed: u32,
    /// Such failures of the use of a credential.
    killed_uses: u32,
    /// Wrong identities.
    wrong: u32,
    /// Failures that no kill explains.
    other: u32,
    /// Durations of the logins that did not fail.
    durations: Vec<Duration>,
}

impl Counts {
    /// Returns the duration that so many percent of the logins did not exceed.
    fn percentile(&self, percent: usize) -> Duration {
        let mut sorted = self.durations.clone();
        sorted.sort_unstable();
        let at = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
        sorted.get(at).copied().unwrap_or_default()
    }
}

#[derive(Debug, Default)]
struct Records {
    /// The counts by row of the table.
    counts: [Counts; ROWS.len()],
    /// The number of failures on killed connections by text.
    killed: BTreeMap<String, u32>,
    /// The first failures of other kinds.
    problems: Vec<String>,
}

/// The names of the rows.
const ROWS: [&str; 3] = ["aggregated API", "proxy, Service", "proxy, one replica"];

fn row(route: Route) -> usize {
    match route {
        Route::ApiServer => 0,
        Route::Service => 1,
        Route::Replica(_) => 2,
    }
}

/// The result of all logins.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally(Arc<Mutex<Records>>);

impl Tally {
    fn lock(&self) -> MutexGuard<'_, Records> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the result of a login, during which these replicas were down. Returns its
    /// credential.
    pub(super) fn login(
        &self,
        number: u32,
        login: &Login,
        duration: Duration,
        down: &[usize],
        result: Result<Option<Pair>, Failure>,
    ) -> Option<Pair> {
        let mut records = self.lock();
        let counts = &mut records.counts[row(login.route)];
        counts.logins += 1;
        match result {
            Ok(credential) => {
                counts.durations.push(duration);
                if login.is_wrong() {
                    counts.refused += 1;
                } else {
                    counts.verified += 1;
                }
                credential
            }
            Err(failure) => {
                let killed = |counts: &mut Counts| counts.killed += 1;
                records.failed(number, login, login.route, down, &failure, killed);
                None
            }
        }
    }

    /// Records the result of the use of a login's credential.
    pub(super) fn used(&self, number: u32, login: &Login, down: &[usize], result: Result<(), Failure>) {
        let mut records = self.lock();
        match result {
            Ok(()) => records.counts[row(login.route)].used += 1,
            Err(failure) => {
                let (route, killed) =
                    (Target::route_of_use(login.route), |counts: &mut Counts| counts.killed_uses += 1);
                records.failed(number, login, route, down, &failure, killed);
            }
        }
    }

    /// Checks that all logins were sent, and that kills explain all failures.
    pub(super) fn check(&self, count: u32) -> anyhow::Result<()> {
        let records = self.lock();
        let sum = |of: fn(&Counts) -> u32| records.counts.iter().map(of).sum::<u32>();
        ensure!(sum(|counts| counts.logins) == count, "not all logins were sent");
        let (wrong, other) = (sum(|counts| counts.wrong), sum(|counts| counts.other));
        ensure!(
            wrong + other == 0,
            "{wrong} wrong identities and {other} failures that no kill explains, beginning with {:#?}",
            records.problems
        );
        ensure!(sum(|counts| counts.verified) > 0, "no login had a credential");
        Ok(())
    }
}

impl Records {
    fn failed(
        &mut self,
        number: u32,
        login: &Login,
        route: Route,
        down: &[usize],
        failure: &Failure,
        killed: impl FnOnce(&mut Counts),
    ) {
        let counts = &mut self.counts[row(login.route)];
        let class = classify(failure, route, down);
        match class {
            Class::OnKilled => {
                killed(counts);
                let text = failure.to_string().trim().to_owned();
                if self.killed.contains_key(&text) || self.killed.len() < MAX_TEXTS {
                    *self.killed.entry(text).or_default() += 1;
                }
                return;
            }
            Class::WrongIdentity => counts.wrong += 1,
            Class::Other => counts.other += 1,
        }
        if self.problems.len() < MAX_TEXTS {
            self.problems.push(format!("login {number} on {route:?}, {down:?} down: {failure}"));
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let records = self.lock();
        writeln!(
            f,
            "{:<19}{:>8}{:>10}{:>9}{:>7}{:>11}{:>7}{:>7}{:>9}{:>9}{:>9}",
            "", "logins", "verified", "refused", "used", "on killed", "wrong", "other", "p50", "p99", "max"
        )?;
        for (name, counts) in ROWS.iter().zip(&records.counts) {
            let killed = format!("{} + {}", counts.killed, counts.killed_uses);
            let percentile = |percent| format!("{} ms", counts.percentile(percent).as_millis());
            writeln!(
                f,
                "{name:<19}{:>8}{:>10}{:>9}{:>7}{killed:>11}{:>7}{:>7}{:>9}{:>9}{:>9}",
                counts.logins,
                counts.verified,
                counts.refused,
                counts.used,
                counts.wrong,
                counts.other,
                percentile(50),
                percentile(99),
                percentile(100)
            )?;
        }
        writeln!(f, "failures on connections to killed replicas:")?;
        for (text, count) in &records.killed {
            writeln!(f, "  {count} x {text}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login(user: usize, password_of: usize) -> Login {
        Login { route: Route::Service, user, password_of, is_used: false }
    }

    fn aborted() -> Failure {
        Failure::Connection(anyhow::anyhow!("reset"))
    }

    #[test]
    fn a_run_fails_after_a_failure_that_no_kill_explains() {
        let pair = || Pair { certificate_pem: String::new(), private_key_pem: String::new() };
        let identity = || Failure::Identity { expected: "a".to_owned(), got: "b".to_owned() };
        let table = [
            ("a verified login", Ok(Some(pair())), Ok(()), 2, true),
            ("a killed login", Err(aborted()), Ok(()), 2, true),
            ("a killed use", Ok(Some(pair())), Err(aborted()), 2, true),
            ("too few logins", Ok(Some(pair())), Ok(()), 3, false),
            ("another failure", Err(Failure::Timeout), Ok(()), 2, false),
            ("a wrong identity", Ok(Some(pair())), Err(identity()), 2, false),
        ];
        for (name, first, used, count, passes) in table {
            let tally = Tally::default();
            tally.login(0, &login(1, 1), Duration::ZERO, &[0], first);
            tally.used(0, &login(1, 1), &[0], used);
            tally.login(1, &login(1, 1), Duration::ZERO, &[], Ok(Some(pair())));
            assert_eq!(tally.check(count).is_ok(), passes, "{name}");
        }
        let tally = Tally::default();
        tally.login(0, &login(1, 2), Duration::ZERO, &[], Ok(None));
        assert_eq!(tally.check(1).unwrap_err().to_string(), "no login had a credential");
        tally.login(1, &login(1, 1), Duration::ZERO, &[], Err(aborted()));
        let error = tally.check(2).unwrap_err().to_string();
        assert!(error.contains("login 1 on Service, [] down: the connection failed: reset"), "{error}");
    }

    #[test]
    fn percentiles_are_durations_of_logins() {
        let of = |millis: &[u64]| Counts {
            durations: millis.iter().map(|number| Duration::from_millis(*number)).collect(),
            ..Counts::default()
        };
        let counts = of(&[5, 1, 4, 2, 3]);
        let percentiles = [0, 50, 99, 100].map(|percent| counts.percentile(percent).as_millis());
        assert_eq!(percentiles, [1, 3, 5, 5]);
        assert_eq!(of(&[]).percentile(50), Duration::ZERO);
    }
}

//! The limits of an evaluation: cost, size of values, and regular expressions.

use std::collections::HashMap;
use std::sync::Arc;

use crate::error::EvaluationError;
use crate::libraries::regular_expression::{self, Limits, Literals, Pattern};

/// The limits of one evaluation.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Budget {
    /// The largest cost, in the units of Kubernetes' cost model.
    pub cost: u64,
    /// The largest number of bytes of text and elements of lists that the evaluation builds.
    pub size: usize,
}

impl Default for Budget {
    /// The limit of cost that Kubernetes has for each evaluation.
    fn default() -> Self {
        Self { cost: 1_000_000, size: 16 << 20 }
    }
}

impl Budget {
    /// Returns a budget with this limit of cost.
    pub fn with_cost(cost: u64) -> Self {
        Self { cost, ..Self::default() }
    }
}

/// The largest number of regular expressions that an evaluation compiles, including those that are
/// not valid.
const MAX_PATTERNS: usize = 50;
/// The largest number of comparisons and steps that have no cost in Kubernetes' model, for each
/// unit of cost that the budget has.
const FREE_STEPS: u64 = 16;

/// The cost, the work and the memory that an evaluation used so far.
pub(crate) struct Usage {
    budget: Budget,
    cost: u64,
    steps: u64,
    size: usize,
    /// The regular expressions of the program.
    literals: Arc<Literals>,
    /// The regular expressions that the evaluation computed.
    patterns: HashMap<Arc<str>, Result<Arc<Pattern>, String>>,
}

impl Usage {
    pub(crate) fn new(budget: Budget, literals: Arc<Literals>) -> Self {
        Self { budget, cost: 0, steps: 0, size: 0, literals, patterns: HashMap::new() }
    }

    pub(crate) fn cost(&self) -> u64 {
        self.cost
    }

    /// Counts cost of Kubernetes' model.
    pub(crate) fn charge(&mut self, cost: u64) -> Result<(), EvaluationError> {
        self.cost = self.cost.saturating_add(cost);
        if self.cost > self.budget.cost { Err(EvaluationError::CostLimit) } else { Ok(()) }
    }

    /// Subtracts cost that was counted for a part of a test for a field.
    pub(crate) fn refund(&mut self, cost: u64) {
        self.cost = self.cost.saturating_sub(cost);
    }

    /// Fails if a cost that is counted later will exceed the limit.
    pub(crate) fn expect_cost(&mut self, cost: u64) -> Result<(), EvaluationError> {
        if self.cost.saturating_add(cost) > self.budget.cost { self.charge(cost) } else { Ok(()) }
    }

    /// Counts work that costs nothing in Kubernetes' model.
    pub(crate) fn work(&mut self, steps: usize) -> Result<(), EvaluationError> {
        self.steps = self.steps.saturating_add(steps as u64);
        let limit = self.budget.cost.saturating_mul(FREE_STEPS).max(10_000);
        if self.steps > limit { Err(EvaluationError::CostLimit) } else { Ok(()) }
    }

    /// Counts bytes or elements before they are allocated.
    pub(crate) fn allocate(&mut self, size: usize) -> Result<(), EvaluationError> {
        self.size = self.size.saturating_add(size);
        if self.size > self.budget.size { Err(EvaluationError::SizeLimit) } else { Ok(()) }
    }

    /// Returns a compiled regular expression.
    pub(crate) fn pattern(&mut self, text: &Arc<str>) -> Result<Arc<Pattern>, EvaluationError> {
        if let Some(pattern) = self.literals.get(text) {
            return Ok(Arc::clone(pattern));
        }
        if !self.patterns.contains_key(text) && self.patterns.len() >= MAX_PATTERNS {
            return Err(EvaluationError::CostLimit);
        }
        let pattern = self
            .patterns
            .entry(Arc::clone(text))
            .or_insert_with(|| regular_expression::compile(text, &Limits::COMPUTED).map(Arc::new));
        pattern.clone().map_err(EvaluationError::failed)
    }
}
